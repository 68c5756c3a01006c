# cmake --install: headers, both libraries, find_package(krait) and pkg-config.

include(CMakePackageConfigHelpers)
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/krait)

install(DIRECTORY include/krait DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(FILES ${generated_include}/krait/backend/kernels.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/krait/backend)
install(TARGETS krait_static krait_shared EXPORT kraitTargets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(KR_CUDA_PLUGIN)
    install(TARGETS krait_cuda_plugin LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(EXPORT kraitTargets NAMESPACE krait:: DESTINATION ${config_dir})

configure_package_config_file(cmake/kraitConfig.cmake.in ${PROJECT_BINARY_DIR}/kraitConfig.cmake
                              INSTALL_DESTINATION ${config_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kraitConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kraitConfig.cmake ${PROJECT_BINARY_DIR}/kraitConfigVersion.cmake
        DESTINATION ${config_dir})

# The prefix is found from where krait.pc lies, so that an installed tree may be moved.
file(RELATIVE_PATH pc_to_prefix /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(krait.pc.in ${PROJECT_BINARY_DIR}/krait.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/krait.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(FILES README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs FILES_MATCHING PATTERN "*.md" PATTERN "*.svg")
install(DIRECTORY examples/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples FILES_MATCHING PATTERN "*.c" PATTERN "*.cpp")
