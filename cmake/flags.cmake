# How our own code is compiled. Carried by krait_flags, so that nothing of it reaches a project that uses the library.

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
# One program holds code for several instruction sets; link-time optimisation could move it across their borders.
set(CMAKE_INTERPROCEDURAL_OPTIMIZATION OFF)

add_library(krait_flags INTERFACE)
set(c_flags
    -Wall -Wextra -Wpedantic -Wconversion -Wshadow
    -ffp-contract=off # the same roundings from every compiler; a fused multiply-add is written as one
    -fno-math-errno)  # nobody reads errno after sqrt, which then is one instruction; results stay the same
if(KR_WERROR)
    list(APPEND c_flags -Werror)
endif()
target_compile_options(krait_flags INTERFACE "$<$<COMPILE_LANGUAGE:C>:${c_flags}>")

if(KR_SANITIZE)
    set(sanitize -fsanitize=${KR_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
    add_compile_options(${sanitize})
    add_link_options(${sanitize})
    # gcc folds fewer constants under its sanitizers and then doubts conversions that it accepts in the release build.
    target_compile_options(krait_flags INTERFACE $<$<COMPILE_LANGUAGE:C>:-Wno-conversion>)
endif()
