// Attention and completion in one call, against the calls apart.
#include "attend_case.h"
#include "complete_case.h"

namespace locks {
namespace {

using test::AttendCase;
using test::AttendShape;
using test::CompleteCase;
using test::DeviceArray;
using test::DeviceCase;
using test::Lists;

class CudaAttendAndComplete : public test::CudaTest {};

struct Both {
  AttendCase attend;
  CompleteCase completion;

  Both(int head_dim, int group, bool list_per_head, std::vector<std::int32_t> lengths, int longest)
      : attend(shape(head_dim, group, std::move(lengths)), list_per_head ? Lists::kPerQueryHead : Lists::kPerKvHead),
        completion(kGraded8, head_dim, 2, group, list_per_head, longest) {}

  static AttendShape shape(int head_dim, int group, std::vector<std::int32_t> lengths) {
    AttendShape shape;
    shape.dtype = DType::kBF16;
    shape.head_dim = head_dim;
    shape.group = group;
    shape.lengths = std::move(lengths);
    return shape;
  }
  [[nodiscard]] std::vector<float> run(bool at_once) {
    DeviceCase device(attend);
    (void)completion.run([&](const cuda::CompletionArgs& args, SoftmaxStates states) {
      if (at_once) return cuda::attend_and_complete(device.args, args, states, device.out_view, nullptr);
      cuda::attend(device.args, states, false, nullptr);
      cuda::complete(args, states, nullptr);
      cuda::finish(states, device.out_view, nullptr);
    });
    return device.out.read();
  }
};

TEST_F(CudaAttendAndComplete, HasTheBitsOfTheCallsApart) {
  for (const int head_dim : {64, 80, 128, 256}) {
    for (const bool list_per_head : {false, true}) {
      // With a list for each of 64 heads there are many rows: attention then merges in another way.
      for (const int group : {3, 32}) {
        if (group == 32 && (!list_per_head || head_dim == 256)) continue;
        Both both(head_dim, group, list_per_head, {170, 1000}, 440);
        EXPECT_EQ(both.run(true), both.run(false)) << head_dim << ", group " << group << ", a list a head " << list_per_head;
      }
    }
  }
}

TEST_F(CudaAttendAndComplete, EitherMayBeEmpty) {
  Both nothing_attended(128, 4, false, {0, 0}, 60);
  EXPECT_EQ(nothing_attended.run(true), nothing_attended.run(false));
  Both nothing_completed(128, 4, false, {17, 500}, 60);
  nothing_completed.completion.counts.assign(nothing_completed.completion.counts.size(), 0);
  EXPECT_EQ(nothing_completed.run(true), nothing_completed.run(false));
  Both nothing(128, 4, false, {0, 0}, 60);
  nothing.completion.counts = nothing_completed.completion.counts;
  for (const float value : nothing.run(true)) EXPECT_EQ(value, 0.0F);
}

/// Queued again and again, as in the layers of a model: what starts early must not overtake what came before.
TEST_F(CudaAttendAndComplete, GivesTheSameInARow) {
  Both both(128, 8, false, {900, 1500}, 440);
  const std::vector<float> want = both.run(false);
  DeviceCase device(both.attend);
  (void)both.completion.run([&](const cuda::CompletionArgs& args, SoftmaxStates states) {
    for (int i = 0; i < 20; ++i) {
      cuda::attend_and_complete(device.args, args, states, device.out_view, nullptr);
      cuda::attend(device.args, states, false, nullptr);
      cuda::complete(args, states, nullptr);
      cuda::finish(states, device.out_view, nullptr);
      cuda::attend_and_complete(device.args, args, states, device.out_view, nullptr);
    }
  });
  EXPECT_EQ(device.out.read(), want);
}

TEST_F(CudaAttendAndComplete, NamesTheOutput) {
  Both both(128, 4, false, {17, 500}, 60);
  DeviceCase device(both.attend);
  (void)both.completion.run([&](const cuda::CompletionArgs& args, SoftmaxStates states) {
    View<float, 3> wrong = device.out_view;
    wrong.shape[2] = 64;
    try {
      cuda::attend_and_complete(device.args, args, states, wrong, nullptr);
      ADD_FAILURE() << "accepted";
    } catch (const std::invalid_argument& error) {
      EXPECT_EQ(std::string(error.what()).find("out: expected"), 0U) << error.what();
    }
  });
}

}  // namespace
}  // namespace locks
