# What `cmake --install` puts down: headers, library, the CMake and pkg-config descriptions, and what people run.
include(CMakePackageConfigHelpers)
set(LOCKS_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/locks)

install(TARGETS locks EXPORT locksTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/locks ${CMAKE_CURRENT_BINARY_DIR}/include/locks DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h")
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

install(EXPORT locksTargets NAMESPACE locks:: DESTINATION ${LOCKS_CMAKE_DIR})
# In a file of its own: programs that do not use it need no CUDA toolkit.
if(TARGET locks_cuda)
  install(TARGETS locks_cuda EXPORT locksCudaTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
  install(EXPORT locksCudaTargets NAMESPACE locks:: DESTINATION ${LOCKS_CMAKE_DIR})
endif()
configure_package_config_file(cmake/locksConfig.cmake.in locksConfig.cmake INSTALL_DESTINATION ${LOCKS_CMAKE_DIR})
write_basic_package_version_file(locksConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/locksConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/locksConfigVersion.cmake
        DESTINATION ${LOCKS_CMAKE_DIR})

# Relative to the file itself, so that an installed tree can be moved.
file(RELATIVE_PATH LOCKS_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/locks.pc.in locks.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/locks.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# What a user runs, without the tests: `cmake --build BUILD --target user`.
add_custom_target(user DEPENDS locks)
if(TARGET locks_cuda)
  add_dependencies(user locks_cuda)
endif()
if(TARGET locks_cli)
  install(TARGETS locks_cli RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  add_dependencies(user locks_cli)
  # The Python of its `eval` and `inspect`, which it looks for in ../share/locks; a test says which modules these import.
  install(DIRECTORY evals DESTINATION share/locks PATTERN __pycache__ EXCLUDE)
  foreach(_module document kl llama_host locks_llamacpp plugin_path progress session)
    install(FILES python/${_module}.py DESTINATION share/locks/python)
  endforeach()
endif()
foreach(_plugin ggml_locks locks_preload)
  if(TARGET ${_plugin})
    install(TARGETS ${_plugin} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
    add_dependencies(user ${_plugin})
  endif()
endforeach()
