/* program_mock.c - the program with the mock device in it (krait_mock): a check of the device's that fails ends it. */
#include "tests/harness.h"

#include <stdarg.h>

bool kr_test_check(bool ok, const char *file, int line, const char *format, ...)
{
    if (ok) return true;
    va_list list;
    va_start(list, format);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, format, list);
    va_end(list);
    fputc('\n', stderr);
    abort();
}
