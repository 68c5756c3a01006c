# libkrait: one set of position-independent objects, gathered into a static and a shared library with entries of their own.

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

# What the library's own files, its tests and its benchmarks see of src/.
add_library(krait_internal INTERFACE)
target_include_directories(krait_internal INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)
target_link_libraries(krait_internal INTERFACE krait_flags)

# PCRE2, for the regular expressions of tokenizer files. A build without it refuses files that have any.
set_property(CACHE KR_PCRE2 PROPERTY STRINGS AUTO ON OFF)
set(pcre2_library) # what the two libraries link
set(pcre2_pc)      # the same for pkg-config
if(NOT KR_PCRE2 MATCHES "^(AUTO|ON|OFF)$")
    message(FATAL_ERROR "KR_PCRE2 is \"${KR_PCRE2}\", but must be AUTO, ON or OFF")
endif()
if(NOT KR_PCRE2 STREQUAL "OFF")
    find_path(PCRE2_INCLUDE_DIR pcre2.h)
    find_library(PCRE2_LIBRARY pcre2-8)
    mark_as_advanced(PCRE2_INCLUDE_DIR PCRE2_LIBRARY)
    if(PCRE2_INCLUDE_DIR AND PCRE2_LIBRARY)
        # Imported, so that it is not exported: an installed krait finds its own (kraitConfig.cmake.in).
        add_library(krait::pcre2 INTERFACE IMPORTED GLOBAL)
        set_target_properties(krait::pcre2 PROPERTIES INTERFACE_LINK_LIBRARIES "${PCRE2_LIBRARY}")
        set(pcre2_library krait::pcre2)
        get_filename_component(pcre2_dir ${PCRE2_LIBRARY} DIRECTORY)
        set(pcre2_pc " -lpcre2-8")
        if(NOT pcre2_dir IN_LIST CMAKE_C_IMPLICIT_LINK_DIRECTORIES)
            set(pcre2_pc " -L${pcre2_dir} -lpcre2-8")
        endif()
    elseif(KR_PCRE2 STREQUAL "ON")
        message(FATAL_ERROR "KR_PCRE2 is ON, but pcre2.h or the library pcre2-8 is not found (Debian: libpcre2-dev)")
    else()
        message(STATUS "PCRE2 is not found (Debian: libpcre2-dev): tokenizers with regular expressions will be refused")
    endif()
endif()

# The public functions as programs reach them, generated from the headers (src/api/entries.awk). Files whose text is the same
# keep their date.
find_program(KR_AWK awk REQUIRED)
mark_as_advanced(KR_AWK)
set(entries ${PROJECT_BINARY_DIR}/entries)
file(GLOB public_headers CONFIGURE_DEPENDS include/krait/*.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${public_headers} ${PROJECT_SOURCE_DIR}/src/api/entries.awk)
file(REMOVE_RECURSE ${entries}/new)
file(MAKE_DIRECTORY ${entries}/new)
execute_process(COMMAND ${KR_AWK} -v out=${entries}/new -f ${PROJECT_SOURCE_DIR}/src/api/entries.awk ${public_headers}
                COMMAND_ERROR_IS_FATAL ANY)
file(GLOB new_files ${entries}/new/*)
execute_process(COMMAND ${CMAKE_COMMAND} -E copy_if_different ${new_files} ${entries} COMMAND_ERROR_IS_FATAL ANY)
file(GLOB entry_sources RELATIVE ${entries}/new ${entries}/new/*.c)
list(TRANSFORM entry_sources PREPEND ${entries}/)

# <krait/backend/kernels.h>: what backends see of src/kernels (src/kernels/backend_header.awk).
file(GLOB kernel_headers CONFIGURE_DEPENDS src/kernels/*.h src/kernels/*.def src/kernels/args/*.h)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${kernel_headers} ${PROJECT_SOURCE_DIR}/src/kernels/backend_header.awk)
set(generated_include ${PROJECT_BINARY_DIR}/include)
file(MAKE_DIRECTORY ${generated_include}/krait/backend)
execute_process(COMMAND ${KR_AWK} -v root=${PROJECT_SOURCE_DIR}/src -f ${PROJECT_SOURCE_DIR}/src/kernels/backend_header.awk
                OUTPUT_FILE ${generated_include}/krait/backend/kernels.new COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} -E copy_if_different ${generated_include}/krait/backend/kernels.new
                ${generated_include}/krait/backend/kernels.h)
file(REMOVE ${generated_include}/krait/backend/kernels.new)
target_include_directories(krait_internal INTERFACE ${generated_include})

# krait_objects(NAME [APART] SOURCES... [OPTIONS...]) - compiles the sources and adds them to both libraries, or, with APART, to
# neither.
function(krait_objects name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "APART" "" "SOURCES;OPTIONS")
    add_library(${name} OBJECT ${arg_SOURCES})
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
    target_compile_options(${name} PRIVATE ${arg_OPTIONS} "$<$<COMPILE_LANGUAGE:C>:SHELL:-include ${entries}/entry_names.h>")
    target_compile_definitions(${name} PRIVATE KR_BUILDING KR_STATIC) # entries are exported, nothing else
    target_link_libraries(${name} PRIVATE krait_internal Threads::Threads)
    if(NOT arg_APART)
        set_property(GLOBAL APPEND PROPERTY krait_object_sets $<TARGET_OBJECTS:${name}>)
    endif()
endfunction()

# src/kernels/cpu, once for each row of isa.def that KR_CPU_ISAS names; other processors have the reference kernels.
if(KR_CPU_KERNELS AND CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_SIZEOF_VOID_P EQUAL 8)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/kernels/isa.def)
    file(STRINGS src/kernels/isa.def isa_rows REGEX "^KR_ISA_ROW")
    file(GLOB cpu_sources CONFIGURE_DEPENDS src/kernels/cpu/*_cpu.c)
    list(GET isa_rows 0 first_isa_row)
    set(isa_left ${KR_CPU_ISAS})
    set(built_isas)
    foreach(row IN LISTS isa_rows)
        if(NOT row MATCHES "^KR_ISA_ROW\\(([a-z0-9_]+), \"([^\"]+)\"\\)")
            message(FATAL_ERROR "src/kernels/isa.def: cannot read \"${row}\"")
        endif()
        set(isa ${CMAKE_MATCH_1})
        if(KR_CPU_ISAS AND NOT isa IN_LIST KR_CPU_ISAS)
            continue()
        endif()
        if(isa_left)
            list(REMOVE_ITEM isa_left ${isa})
        endif()
        string(APPEND built_isas "KR_ISA_ROW(${isa})")
        separate_arguments(isa_flags UNIX_COMMAND "${CMAKE_MATCH_2}")
        # All rows compile the same source, so UndefinedBehaviorSanitizer, which doubles the time of compilation, watches one.
        if(KR_SANITIZE MATCHES "undefined" AND NOT row STREQUAL first_isa_row)
            list(APPEND isa_flags -fno-sanitize=undefined)
        endif()
        krait_objects(krait_cpu_${isa} SOURCES ${cpu_sources} OPTIONS -DKR_ISA=${isa} ${isa_flags})
    endforeach()
    if(isa_left)
        message(FATAL_ERROR "KR_CPU_ISAS names ${isa_left}, which src/kernels/isa.def does not list")
    endif()
    set_source_files_properties(src/kernels/select.c PROPERTIES COMPILE_DEFINITIONS "KR_ISA_ROWS=${built_isas}")
endif()

# src/kernels/ref, for float and for double; what has one slot for all element types is compiled once.
file(GLOB ref_sources CONFIGURE_DEPENDS src/kernels/ref/*_ref.c)
set(ref_untyped ${ref_sources})
list(FILTER ref_untyped INCLUDE REGEX "/(compare|copy|random|finite|squares|table)_ref\\.c$")
list(REMOVE_ITEM ref_sources ${ref_untyped})
krait_objects(krait_ref SOURCES ${ref_untyped})
krait_objects(krait_ref_f32 SOURCES ${ref_sources} OPTIONS -DKR_REF_F32)
krait_objects(krait_ref_f64 SOURCES ${ref_sources} OPTIONS -DKR_REF_F64)

file(GLOB module_sources CONFIGURE_DEPENDS src/base/*.c src/tensor/*.c src/kernels/*.c src/device/*.c src/comm/*.c src/tape/*.c
     src/ops/*.c src/mixer/*.c src/raw/*.c src/io/*.c src/nn/*.c src/decode/*.c src/model/*.c src/text/*.c src/data/*.c src/train/*.c
     src/generate/*.c src/check/*.c src/api/*.c)
list(FILTER module_sources EXCLUDE REGEX "(_cuda|/error_entries|/plugin_entry)\\.c$")
krait_objects(krait_modules SOURCES ${module_sources})
if(pcre2_library)
    target_compile_definitions(krait_modules PRIVATE KR_HAVE_PCRE2=1)
    target_include_directories(krait_modules SYSTEM PRIVATE ${PCRE2_INCLUDE_DIR})
endif()

# The entries, once for each library: what links the static one, such as a plug-in, does not export them.
foreach(entries_of IN ITEMS krait_entries krait_entries_static)
    add_library(${entries_of} OBJECT ${entry_sources} src/api/error_entries.c)
    set_target_properties(${entries_of} PROPERTIES POSITION_INDEPENDENT_CODE ON C_VISIBILITY_PRESET hidden)
    target_compile_definitions(${entries_of} PRIVATE KR_BUILDING)
    target_link_libraries(${entries_of} PRIVATE krait_internal Threads::Threads)
endforeach()
target_compile_definitions(krait_entries_static PRIVATE KR_STATIC)

# src/kernels/cuda and the device over it: part of both libraries (KR_CUDA), or a plug-in (KR_CUDA_PLUGIN, device_plugin.cmake).
# The runtime is linked statically: programs start without a driver, too.
set(cuda_library) # what the two libraries link
set(cuda_pc)      # the same for pkg-config
if(KR_CUDA AND KR_CUDA_PLUGIN)
    message(FATAL_ERROR "KR_CUDA puts the CUDA device into libkrait, KR_CUDA_PLUGIN into libkrait_cuda.so: choose one")
endif()
if(KR_CUDA OR KR_CUDA_PLUGIN)
    set(CMAKE_CUDA_ARCHITECTURES 80 90a CACHE STRING "CUDA architectures")
    set(CMAKE_CUDA_STANDARD 17)
    enable_language(CUDA)
    if(KR_CUDA_PLUGIN) # the linker of C adds what C needs; nothing of nvcc's libraries but the runtime, which is named below
        set(CMAKE_CUDA_IMPLICIT_LINK_LIBRARIES "")
        set(CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES "")
    endif()
    find_package(CUDAToolkit REQUIRED)
    file(GLOB_RECURSE cuda_sources CONFIGURE_DEPENDS src/kernels/cuda/*.cu src/kernels/cuda/*.c)
    if(KR_CUDA_UNITY)
        include(cmake/cuda_unity.cmake)
        krait_cuda_unity(cuda_sources ops scan)
    endif()
    set(apart)
    if(KR_CUDA_PLUGIN)
        set(apart APART)
    endif()
    krait_objects(krait_cuda ${apart} SOURCES ${cuda_sources} src/device/device_cuda.c)
    # Kernels of Hopper are empty without 90a: a build that lacks it takes every GPU for one of sm_80.
    if(NOT CMAKE_CUDA_ARCHITECTURES MATCHES "90a")
        set_source_files_properties(src/device/device_cuda.c PROPERTIES COMPILE_DEFINITIONS KR_CUDA_WITHOUT_90A)
    endif()
    # No library of C++: what links krait links with a C compiler.
    set(host_flags -Wall -Wextra -fvisibility=hidden -ffp-contract=off -fno-exceptions -fno-rtti
        -fno-threadsafe-statics)
    list(JOIN host_flags "," host_flags)
    target_compile_options(krait_cuda PRIVATE
        "$<$<COMPILE_LANGUAGE:CUDA>:--extended-lambda;-Xcompiler=${host_flags}>")
    if(KR_WERROR)
        target_compile_options(krait_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings>")
    endif()
    # Draws have the processor's bits (base/normal.h).
    set_source_files_properties(src/kernels/cuda/ops/random_cuda.cu PROPERTIES COMPILE_OPTIONS -fmad=false)
    set_target_properties(krait_cuda PROPERTIES CUDA_VISIBILITY_PRESET hidden)
    target_include_directories(krait_cuda SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
    # Imported, so that it is not exported: an installed krait finds its own (kraitConfig.cmake.in).
    add_library(krait::cudart INTERFACE IMPORTED GLOBAL)
    set_target_properties(krait::cudart PROPERTIES INTERFACE_LINK_LIBRARIES
                          "${CUDAToolkit_LIBRARY_DIR}/libcudart_static.a;${CMAKE_DL_LIBS};rt")
endif()
if(KR_CUDA)
    target_compile_definitions(krait_internal INTERFACE KR_HAVE_CUDA=1)
    set(cuda_library krait::cudart)
    set(cuda_pc " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -ldl -lrt")
endif()

get_property(object_sets GLOBAL PROPERTY krait_object_sets)
add_library(krait_static STATIC ${object_sets} $<TARGET_OBJECTS:krait_entries_static>)
add_library(krait_shared SHARED ${object_sets} $<TARGET_OBJECTS:krait_entries>)
set_target_properties(krait_static PROPERTIES OUTPUT_NAME krait)
set_target_properties(krait_shared PROPERTIES OUTPUT_NAME krait EXPORT_NAME krait VERSION ${PROJECT_VERSION}
                      SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
# C links them and what uses them, also with kernels of CUDA inside.
set_target_properties(krait_static krait_shared PROPERTIES LINKER_LANGUAGE C)
foreach(library IN ITEMS krait_static krait_shared)
    target_include_directories(${library} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                               $<BUILD_INTERFACE:${generated_include}>
                               $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    target_link_libraries(${library} PRIVATE ${pcre2_library} ${cuda_library} Threads::Threads ${CMAKE_DL_LIBS} m)
endforeach()
target_compile_definitions(krait_static INTERFACE KR_STATIC)
add_library(krait::krait ALIAS krait_shared)
add_library(krait::krait_static ALIAS krait_static)
