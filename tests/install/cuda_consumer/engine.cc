// A program of somebody else's that decodes on a GPU: it sizes a step, and says so if there is no GPU to run it on.
#include <cstdio>
#include <string>

#include <locks/cuda.h>

int main() {
  const locks::Geometry geometry{128, 8, 32, 0.0884F};
  const locks::DecodePlan plan(locks::DecodeConfig{}, geometry, {4, 131072, 1});
  std::printf("workspace: %zu bytes\n", locks::cuda::decode_workspace_bytes(plan));
  if (locks::cuda::decode_workspace_bytes(plan) == 0) return 1;
  const std::string reason = locks::cuda::why_unavailable();
  if (!reason.empty()) {
    std::printf("no GPU: %s\n", reason.c_str());
    return 0;
  }
  std::printf("%s\n", locks::cuda::current_device().name.c_str());
  return 0;
}
