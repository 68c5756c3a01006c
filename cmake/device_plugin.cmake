# Devices as shared objects that a libkrait without them loads (src/device/plugins.h): libkrait_cuda.so with KR_CUDA_PLUGIN.

# The interface of a library and its plug-ins: the version, and a hash of the headers that a plug-in is compiled with.
file(GLOB_RECURSE plugin_headers RELATIVE ${PROJECT_SOURCE_DIR} CONFIGURE_DEPENDS include/krait/*.h src/base/*.h src/tensor/*.h
     src/kernels/*.h src/kernels/*.def src/device/*.h)
list(SORT plugin_headers)
set(plugin_hashes)
foreach(header IN LISTS plugin_headers)
    file(SHA256 ${PROJECT_SOURCE_DIR}/${header} hash)
    string(APPEND plugin_hashes "${header} ${hash}\n")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${header})
endforeach()
string(SHA256 plugin_hash "${plugin_hashes}")
string(SUBSTRING ${plugin_hash} 0 8 plugin_hash)
set(plugin_interface "KR_PLUGIN_INTERFACE=\"${PROJECT_VERSION}-${plugin_hash}\"")
set_source_files_properties(src/device/plugins.c PROPERTIES COMPILE_DEFINITIONS ${plugin_interface})

# krait_device_plugin(TARGET KIND OBJECTS...) - a plug-in of objects that define KIND, a kr_device_kind.
function(krait_device_plugin target kind)
    add_library(${target} MODULE ${PROJECT_SOURCE_DIR}/src/device/plugin_entry.c ${ARGN})
    set_target_properties(${target} PROPERTIES C_VISIBILITY_PRESET hidden LINKER_LANGUAGE C)
    target_compile_definitions(${target} PRIVATE KR_BUILDING KR_STATIC KR_PLUGIN_KIND=${kind} ${plugin_interface})
    target_link_libraries(${target} PRIVATE krait_internal Threads::Threads)
    if(NOT APPLE)
        target_link_options(${target} PRIVATE "-Wl,--version-script=${PROJECT_SOURCE_DIR}/src/device/plugin.map")
    endif()
endfunction()

if(KR_CUDA_PLUGIN)
    krait_device_plugin(krait_cuda_plugin kr_cuda_kind $<TARGET_OBJECTS:krait_cuda>)
    set_target_properties(krait_cuda_plugin PROPERTIES OUTPUT_NAME krait_cuda CUDA_RUNTIME_LIBRARY None)
    target_link_libraries(krait_cuda_plugin PRIVATE krait::cudart ${CMAKE_DL_LIBS} m)
endif()
