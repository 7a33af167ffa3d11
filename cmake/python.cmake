# The Python package locks_cpp, staged in ${CMAKE_BINARY_DIR}/python. LOCKS_BUILD_PYTHON is AUTO (built if nanobind and Python's
# headers are there), ON or OFF.
set(LOCKS_BUILD_PYTHON AUTO CACHE STRING "Build the Python package: AUTO, ON or OFF")
set_property(CACHE LOCKS_BUILD_PYTHON PROPERTY STRINGS AUTO ON OFF)
if(LOCKS_BUILD_PYTHON STREQUAL "OFF")
  return()
endif()

function(_locks_no_python why)
  if(LOCKS_BUILD_PYTHON STREQUAL "ON")
    message(FATAL_ERROR "LOCKS_BUILD_PYTHON is ON, but ${why}")
  endif()
  message(STATUS "Python package: not built, ${why}")
endfunction()

if(LOCKS_SANITIZE)
  _locks_no_python("an interpreter without the sanitizers cannot load it")
  return()
endif()
if(NOT Python_EXECUTABLE AND EXISTS ${CMAKE_CURRENT_SOURCE_DIR}/.venv/bin/python)
  set(Python_EXECUTABLE ${CMAKE_CURRENT_SOURCE_DIR}/.venv/bin/python)
endif()
set(_locks_python_parts Development.Module)
if(CMAKE_VERSION VERSION_GREATER_EQUAL 3.26)
  list(APPEND _locks_python_parts OPTIONAL_COMPONENTS Development.SABIModule)
endif()
find_package(Python 3.10 QUIET COMPONENTS Interpreter ${_locks_python_parts})
if(NOT Python_Interpreter_FOUND OR Python_VERSION VERSION_LESS 3.10)
  _locks_no_python("there is no Python 3.10 or later; name one with -DPython_EXECUTABLE=path")
  return()
endif()
if(NOT Python_Development.Module_FOUND)
  _locks_no_python("${Python_EXECUTABLE} has no headers (Debian: python3-dev)")
  return()
endif()
execute_process(COMMAND ${Python_EXECUTABLE} -m nanobind --cmake_dir OUTPUT_VARIABLE _locks_nanobind
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE _locks_nanobind_status)
if(NOT _locks_nanobind_status EQUAL 0)
  _locks_no_python("${Python_EXECUTABLE} has no nanobind (pip install nanobind)")
  return()
endif()
find_package(nanobind CONFIG REQUIRED PATHS ${_locks_nanobind} NO_DEFAULT_PATH)
message(STATUS "Python package: for ${Python_EXECUTABLE} (${Python_VERSION}), nanobind ${nanobind_VERSION}")

nanobind_add_module(locks_python_native STABLE_ABI NB_STATIC NB_DOMAIN locks
  python/native/arrays.cc
  python/native/native.cc)
target_compile_options(locks_python_native PRIVATE -Wall -Wextra)
target_link_libraries(locks_python_native PRIVATE locks)
set_target_properties(locks_python_native PROPERTIES OUTPUT_NAME _native
                      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/python/locks_cpp)
if(SKBUILD)
  install(TARGETS locks_python_native LIBRARY DESTINATION locks_cpp COMPONENT python)
  install(FILES LICENSE DESTINATION locks_cpp COMPONENT python)
endif()

# A copy of the sources beside the module, so that PYTHONPATH=${CMAKE_BINARY_DIR}/python is all it takes.
file(GLOB_RECURSE _locks_python_files CONFIGURE_DEPENDS RELATIVE ${CMAKE_CURRENT_SOURCE_DIR}
     python/locks_cpp/*.py python/locks_cpp/*.pyi python/locks_cpp/py.typed)
set(_locks_staged "")
foreach(_file IN LISTS _locks_python_files)
  add_custom_command(OUTPUT ${CMAKE_BINARY_DIR}/${_file} DEPENDS ${_file} VERBATIM
                     COMMAND ${CMAKE_COMMAND} -E copy ${CMAKE_CURRENT_SOURCE_DIR}/${_file} ${CMAKE_BINARY_DIR}/${_file})
  list(APPEND _locks_staged ${CMAKE_BINARY_DIR}/${_file})
endforeach()
add_custom_target(locks_python ALL DEPENDS ${_locks_staged})
add_dependencies(locks_python locks_python_native)
