# The API reference out of the public headers: `cmake --build --preset release --target reference` writes HTML pages to
# BUILD/reference/html and manual pages to BUILD/reference/man/man3. Needs Doxygen (Debian: doxygen). Warnings are errors.

find_program(KR_DOXYGEN doxygen)
mark_as_advanced(KR_DOXYGEN)
set(reference_folder ${PROJECT_BINARY_DIR}/reference)
if(KR_DOXYGEN)
    set(reference_filter ${PROJECT_SOURCE_DIR}/tools/reference_filter)
    configure_file(cmake/Doxyfile.in ${PROJECT_BINARY_DIR}/Doxyfile @ONLY)
    file(GLOB reference_headers CONFIGURE_DEPENDS include/krait/*.h include/krait/*.hpp include/krait/experimental/*.h)
    add_custom_target(reference
        COMMAND ${CMAKE_COMMAND} -E make_directory ${reference_folder}
        COMMAND ${KR_DOXYGEN} -q ${PROJECT_BINARY_DIR}/Doxyfile
        WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
        SOURCES ${reference_headers}
        COMMENT "Writing the API reference to ${reference_folder}"
        VERBATIM)
    install(DIRECTORY ${reference_folder}/man/man3 DESTINATION ${CMAKE_INSTALL_MANDIR} OPTIONAL FILES_MATCHING
            PATTERN "kr_*.3" PATTERN "*.h.3" PATTERN "krait_*.3" PATTERN "*.hpp.3"
            PATTERN "*_detail*" EXCLUDE PATTERN "* *" EXCLUDE)
    install(DIRECTORY ${reference_folder}/html DESTINATION ${CMAKE_INSTALL_DOCDIR} OPTIONAL)
else()
    add_custom_target(reference
        COMMAND ${CMAKE_COMMAND} -E echo "the target reference needs doxygen (Debian: apt-get install doxygen)"
        COMMAND ${CMAKE_COMMAND} -E false VERBATIM)
endif()
