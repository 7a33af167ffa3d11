# liblocks: one folder per stage. Sources are listed, so that a new file is a visible decision.
find_package(Threads REQUIRED)
find_path(HWY_INCLUDE_DIR hwy/highway.h REQUIRED)

# The targets we build: AVX-512 (Highway calls it AVX3), AVX2 and one-lane scalar. Later Highways know more x86 targets,
# which are turned off so that a target's name means the same everywhere.
set(_locks_off "HWY_SSSE3|HWY_SSE4|HWY_AVX3_DL")
file(READ ${HWY_INCLUDE_DIR}/hwy/detect_targets.h _hwy_targets)
foreach(_target SSE2 AVX3_ZEN4 AVX3_SPR AVX10_2)
  if(_hwy_targets MATCHES "define HWY_${_target} ")
    string(APPEND _locks_off "|HWY_${_target}")
  endif()
endforeach()

configure_file(include/locks/version.h.in include/locks/version.h @ONLY)

set(LOCKS_SOURCES
  src/cpu/check.cc
  src/cpu/target.cc
  src/cpu/team.cc
  src/cpu/thread_pool.cc
  src/cpu/types.cc
  src/page_summary/page_summary.cc
  src/page_summary/rotation.cc
)
include(cmake/stages.cmake)

add_library(locks STATIC ${LOCKS_SOURCES})
add_library(locks::locks ALIAS locks)
target_include_directories(locks
  PUBLIC $<BUILD_INTERFACE:${CMAKE_CURRENT_SOURCE_DIR}/include> $<BUILD_INTERFACE:${CMAKE_CURRENT_BINARY_DIR}/include>
         $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
  PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src)
find_package(Eigen3 REQUIRED NO_MODULE)
get_target_property(_eigen_include_dirs Eigen3::Eigen INTERFACE_INCLUDE_DIRECTORIES)
target_include_directories(locks SYSTEM PRIVATE ${HWY_INCLUDE_DIR} ${_eigen_include_dirs})
# A fused multiply-add that the compiler makes on one target and not on another would break the bit-exact rules.
target_compile_options(locks PRIVATE -Wall -Wextra -Wno-psabi -Wno-ignored-attributes -Wno-restrict -ffp-contract=off)
target_compile_definitions(locks PRIVATE "HWY_DISABLED_TARGETS=(${_locks_off})" HWY_BROKEN_EMU128=1 HWY_IS_DEBUG_BUILD=0)
target_link_libraries(locks PUBLIC Threads::Threads)

# The reference is the oracle: scalar, in the order of the formula.
foreach(_source IN LISTS LOCKS_SOURCES)
  if(_source MATCHES "_reference\\.cc$")
    set_source_files_properties(${_source} PROPERTIES COMPILE_OPTIONS "-O1;-fno-tree-vectorize")
  endif()
endforeach()
