# libggml-locks.so, the plug-in for llama.cpp. It needs ggml's public headers to compile and links nothing of ggml.
set(LOCKS_GGML_INCLUDE_DIR "" CACHE PATH "Directory of ggml.h and ggml-backend.h")
if(NOT LOCKS_GGML_INCLUDE_DIR)
  find_package(ggml CONFIG QUIET)
  if(TARGET ggml::ggml)
    get_target_property(_locks_ggml_includes ggml::ggml INTERFACE_INCLUDE_DIRECTORIES)
  endif()
  # The headers of the Python packages libggml-python and llama-cpp-python.
  set(_locks_ggml_hints ${_locks_ggml_includes})
  foreach(_python ${CMAKE_SOURCE_DIR}/.venv/bin/python3 python3)
    execute_process(
      COMMAND ${_python} -c "import sysconfig, importlib.util as u; s = u.find_spec('libggml'); print(';'.join([p + '/include' for p in (s.submodule_search_locations if s else [])] + [sysconfig.get_path('purelib') + '/include']))"
      OUTPUT_VARIABLE _locks_ggml_dirs OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE _locks_ggml_status)
    if(_locks_ggml_status EQUAL 0)
      list(APPEND _locks_ggml_hints ${_locks_ggml_dirs})
    endif()
  endforeach()
  unset(_locks_ggml_found CACHE)
  find_path(_locks_ggml_found NAMES ggml-backend.h HINTS ${_locks_ggml_hints})
  if(NOT _locks_ggml_found)
    message(FATAL_ERROR "ggml.h was not found, which the llama.cpp plug-in needs. Do `pip install libggml-python` (in an "
      "environment of your own or in .venv), or set -DLOCKS_GGML_INCLUDE_DIR, or leave the plug-in out with "
      "-DLOCKS_BUILD_LLAMACPP=OFF.")
  endif()
  set(LOCKS_GGML_INCLUDE_DIR ${_locks_ggml_found} CACHE PATH "Directory of ggml.h and ggml-backend.h" FORCE)
endif()
message(STATUS "ggml headers: ${LOCKS_GGML_INCLUDE_DIR}")
find_package(nlohmann_json REQUIRED)

# What knows nothing of ggml is tested without it.
add_library(locks_llamacpp_tracking OBJECT
  hosts/llamacpp/mask.cc
  hosts/llamacpp/page_map.cc
  hosts/llamacpp/settings.cc
  hosts/llamacpp/settings_json.cc
  hosts/llamacpp/trace_file.cc
  hosts/llamacpp/traced_row.cc)
add_library(locks_llamacpp OBJECT
  hosts/llamacpp/attention_node.cc
  hosts/llamacpp/cache_state.cc
  hosts/llamacpp/engine.cc
  hosts/llamacpp/exact.cc
  hosts/llamacpp/exports.cc
  hosts/llamacpp/frontend_backend.cc
  hosts/llamacpp/frontend_callback.cc
  hosts/llamacpp/glibc_compat.cc
  hosts/llamacpp/host.cc
  hosts/llamacpp/layer_state.cc
  hosts/llamacpp/plugin.cc
  hosts/llamacpp/report.cc)
target_include_directories(locks_llamacpp SYSTEM PRIVATE ${LOCKS_GGML_INCLUDE_DIR})
foreach(_target locks_llamacpp_tracking locks_llamacpp)
  target_include_directories(${_target} PRIVATE hosts/llamacpp src)
  target_compile_options(${_target} PRIVATE -Wall -Wextra -Wno-restrict)
  target_link_libraries(${_target} PRIVATE locks)
endforeach()
target_link_libraries(locks_llamacpp_tracking PRIVATE nlohmann_json::nlohmann_json)

# For the environment variable and the call; and for LD_PRELOAD, which must also stand before a function of ggml's.
add_library(ggml_locks MODULE $<TARGET_OBJECTS:locks_llamacpp_tracking> $<TARGET_OBJECTS:locks_llamacpp>)
add_library(locks_preload MODULE hosts/llamacpp/frontend_preload.cc $<TARGET_OBJECTS:locks_llamacpp_tracking>
                                 $<TARGET_OBJECTS:locks_llamacpp>)
set_target_properties(ggml_locks PROPERTIES OUTPUT_NAME ggml-locks)
set_target_properties(locks_preload PROPERTIES OUTPUT_NAME locks-preload)
target_include_directories(locks_preload SYSTEM PRIVATE ${LOCKS_GGML_INCLUDE_DIR})
foreach(_target ggml_locks locks_preload)
  target_link_libraries(${_target} PRIVATE locks ${CMAKE_DL_LIBS})
  # Foreign images have a C++ library of their own or none, so ours is inside. -z nodelete: exit handlers and the host's
  # graphs point into this library.
  target_link_options(${_target} PRIVATE -Wl,--no-undefined -Wl,--exclude-libs,ALL -Wl,-z,nodelete)
  if(NOT LOCKS_SANITIZE)
    target_link_options(${_target} PRIVATE -static-libstdc++ -static-libgcc)
  endif()
endforeach()
