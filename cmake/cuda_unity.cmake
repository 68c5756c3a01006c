# krait_cuda_unity(SOURCES_VAR FOLDERS...) - replaces the .cu files of some folders by a few files that include them.
#
# nvcc reads the headers of the CUDA runtime for every file, which is most of its time when it only checks kernels. A file
# includes up to 9 sources: first all headers, at global scope, then each source in a namespace of its own, whose macros are
# undefined afterwards. Entries of kernels are declared extern "C" in each namespace, so that they stay the same functions; a
# source that defines other functions for other files cannot be part of one. CMake's UNITY_BUILD supports CUDA from 3.31 on.

function(krait_cuda_unity sources_var)
    set(kept ${${sources_var}})
    foreach(folder IN LISTS ARGN)
        set(members ${kept})
        list(FILTER members INCLUDE REGEX "/cuda/${folder}/[^/]*\\.cu$")
        list(FILTER members EXCLUDE REGEX "/random_cuda\\.cu$") # it has options of its own
        list(REMOVE_ITEM kept ${members})
        set(number 0)
        while(members)
            list(LENGTH members left)
            if(left GREATER 9)
                set(left 9)
            endif()
            list(SUBLIST members 0 ${left} batch)
            list(REMOVE_ITEM members ${batch})
            set(file ${PROJECT_BINARY_DIR}/cuda_unity/${folder}_${number}.cu)
            krait_write_unity(${file} ${batch})
            list(APPEND kept ${file})
            math(EXPR number "${number} + 1")
        endwhile()
    endforeach()
    set(${sources_var} ${kept} PARENT_SCOPE)
endfunction()

function(krait_write_unity file)
    set(includes)
    set(bodies)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ARGN})
    foreach(source IN LISTS ARGN)
        file(STRINGS ${source} lines REGEX "^#include .*\\.(cuh|h)[\">]")
        list(APPEND includes ${lines})
        get_filename_component(name ${source} NAME_WE)
        string(APPEND bodies "namespace in_${name} {\nextern \"C\" {\n#include \"kernels/cuda/cuda_entries.def\"\n}\n#include \"${source}\"\n}\n")
        file(STRINGS ${source} lines REGEX "^#define [A-Za-z_]+")
        foreach(line IN LISTS lines)
            string(REGEX REPLACE "^#define ([A-Za-z_0-9]+).*" "#undef \\1\n" line "${line}")
            string(APPEND bodies "${line}")
        endforeach()
    endforeach()
    list(REMOVE_DUPLICATES includes)
    list(JOIN includes "\n" includes)
    file(CONFIGURE OUTPUT ${file} CONTENT "${includes}\n${bodies}" @ONLY) # keeps its date if nothing changed
endfunction()
