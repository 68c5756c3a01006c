# krait-bench: sees the library's inside, so it links the static one; runs oneDNN and glibc's libmvec beside ours where
# these are installed.

file(GLOB bench_sources CONFIGURE_DEPENDS bench/*.c)
if(bench_sources)
    add_executable(krait_bench ${bench_sources})
    set_target_properties(krait_bench PROPERTIES OUTPUT_NAME krait-bench)
    target_include_directories(krait_bench PRIVATE ${PROJECT_SOURCE_DIR}) # for "bench/measure.h"
    target_link_libraries(krait_bench PRIVATE krait_internal krait_static Threads::Threads m ${CMAKE_DL_LIBS})
    find_path(DNNL_INCLUDE_DIR dnnl.h)
    find_library(DNNL_LIBRARY dnnl)
    if(DNNL_INCLUDE_DIR AND DNNL_LIBRARY)
        target_compile_definitions(krait_bench PRIVATE KR_HAVE_DNNL=1)
        target_include_directories(krait_bench SYSTEM PRIVATE ${DNNL_INCLUDE_DIR})
        target_link_libraries(krait_bench PRIVATE ${DNNL_LIBRARY})
    endif()
    # log1pf is the youngest of the functions that are called (glibc 2.35).
    include(CheckLibraryExists)
    check_library_exists(mvec _ZGVeN16v_log1pf "" KR_FOUND_LIBMVEC)
    if(KR_FOUND_LIBMVEC)
        target_compile_definitions(krait_bench PRIVATE KR_HAVE_LIBMVEC=1)
        target_link_libraries(krait_bench PRIVATE mvec)
    endif()
endif()
