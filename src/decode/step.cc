#include "decode/step.h"

namespace locks::decode {

Step::Step(const DecodePlan& the_plan, const DecodeInputs& the_inputs, std::span<std::byte> workspace, Team the_team,
           Target the_target) noexcept
    : plan(the_plan),
      inputs(the_inputs),
      buffers(decode::buffers(the_plan, workspace.data(), the_team.index)),
      team(the_team),
      target(the_target),
      num_requests(the_inputs.table.num_requests()),
      num_lists(locks::num_lists(the_plan)),
      selects(false) {
  for (int request = 0; request < num_requests; ++request) selects = selects || !always(request).everything;
}

ScoreArgs Step::score_args() const noexcept {
  PageTable table = inputs.table;
  table.context_tokens = buffers.scored_tokens.first(static_cast<std::size_t>(num_requests));
  return {geometry(), inputs.queries, inputs.summaries, table, buffers.log_mass, buffers.score_workspace};
}

AttendArgs Step::always_args() const noexcept {
  const int kv_heads = geometry().kv_heads;
  AttendArgs args{geometry(), inputs.queries, inputs.keys, inputs.values, inputs.table, kv_heads, {}, {}, {}};
  args.workspace = buffers.attend_workspace;
  if (!selects) return args;
  const View<SelectedPage, 2>& lists = buffers.always_lists;
  args.selected = {lists.data, {num_requests, kv_heads, lists.shape[1]}, {lists.stride[0], 0, 1}};
  args.num_selected = {buffers.num_always.data(), {num_requests, kv_heads}, {1, 0}};
  return args;
}

AttendArgs Step::selected_args() const noexcept {
  return {geometry(), inputs.queries,   inputs.keys,          inputs.values,           inputs.table,
          num_lists,  buffers.selected, buffers.num_selected, buffers.attend_workspace};
}

ListShares Step::shares(int request, int list) const noexcept {
  const int heads = heads_per_list();
  const View<float, 3>& all = buffers.log_mass;
  return {{all.at(request, list * heads), {heads, all.shape[2]}, {all.stride[1], 1}},
          {buffers.log_norm.at(request, list * heads), static_cast<std::size_t>(heads)},
          {buffers.share.at(request, list), static_cast<std::size_t>(buffers.share.shape[2])},
          {buffers.selectable.at(request, list * heads), static_cast<std::size_t>(heads)}};
}

}  // namespace locks::decode

namespace locks {

int num_lists(const DecodePlan& plan) noexcept {
  const bool per_query_head = plan.config().select.combine == GroupCombine::kPerQueryHead;
  return per_query_head ? plan.geometry().query_heads : plan.geometry().kv_heads;
}

DecodeChoice choice(const DecodePlan& plan, const DecodeInputs& inputs, std::span<std::byte> workspace, int request,
                    int list) noexcept {
  const decode::Step step(plan, inputs, workspace, {}, Target::kReference);
  DecodeChoice out;
  out.always = step.always(request);
  out.kv_head = step.kv_head_of(list);
  out.num_query_heads = step.heads_per_list();
  out.first_query_head = list * out.num_query_heads;
  if (out.always.everything) return out;
  const ListShares shares = step.shares(request, list);
  out.selected = step.selected(request, list);
  out.completed = step.completed(request, list);
  out.head_share = {shares.head_share.data, shares.head_share.shape, shares.head_share.stride};
  out.log_norm = shares.log_norm;
  return out;
}

}  // namespace locks
