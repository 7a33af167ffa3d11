# liblocks_cuda: the stages for NVIDIA GPUs. LOCKS_CUDA is AUTO (built if nvcc is there), ON or OFF.
set(LOCKS_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO, ON or OFF")
set_property(CACHE LOCKS_CUDA PROPERTY STRINGS AUTO ON OFF)
if(LOCKS_CUDA STREQUAL "OFF" OR LOCKS_SANITIZE)
  return()
endif()
find_program(LOCKS_NVCC nvcc HINTS ${CUDAToolkit_ROOT}/bin $ENV{CUDA_PATH}/bin /usr/local/cuda/bin)
if(NOT LOCKS_NVCC)
  if(LOCKS_CUDA STREQUAL "ON")
    message(FATAL_ERROR "LOCKS_CUDA is ON, but nvcc was not found; name it with -DLOCKS_NVCC=path")
  endif()
  message(STATUS "CUDA backend: not built, there is no nvcc")
  return()
endif()
# One architecture compiles in minutes; releases take them all (preset `cuda-release`).
set(LOCKS_CUDA_ARCHITECTURES 90 CACHE STRING "Architectures of the CUDA backend, as CMAKE_CUDA_ARCHITECTURES takes them")
set(CMAKE_CUDA_ARCHITECTURES ${LOCKS_CUDA_ARCHITECTURES})
set(CMAKE_CUDA_COMPILER ${LOCKS_NVCC})
enable_language(CUDA)
# CMake before 3.26 does not know that nvcc takes C++20.
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
find_package(CUDAToolkit REQUIRED)
if(LOCKS_CCACHE)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${LOCKS_CCACHE})
endif()
message(STATUS "CUDA backend: nvcc ${CMAKE_CUDA_COMPILER_VERSION} for ${LOCKS_CUDA_ARCHITECTURES}")

set(LOCKS_CUDA_SOURCES src/cuda/device.cc)
foreach(_stage summarize score select attend decode)
  file(GLOB _sources CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} src/${_stage}/*_cuda.cc src/${_stage}/*.cu
       src/${_stage}/instances/*.cu)
  list(APPEND LOCKS_CUDA_SOURCES ${_sources})
endforeach()
add_library(locks_cuda STATIC ${LOCKS_CUDA_SOURCES})
add_library(locks::cuda ALIAS locks_cuda)
set_target_properties(locks_cuda PROPERTIES EXPORT_NAME cuda)
target_include_directories(locks_cuda PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/src)
target_link_libraries(locks_cuda PUBLIC locks PRIVATE CUDA::cudart_static)
# constexpr functions of the shared headers run on the device too. ptxas prints every kernel's registers; a kernel that
# spills or needs local memory does not compile.
target_compile_options(locks_cuda PRIVATE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr --expt-extended-lambda -Xptxas=-v,--warn-on-spills,--warn-on-local-memory-usage,--warning-as-error -Xcompiler=-Wall,-Wextra>)
# The selection must have the bits of the CPU: no fused multiply-adds.
set_source_files_properties(src/select/select.cu PROPERTIES COMPILE_OPTIONS "-fmad=false")
