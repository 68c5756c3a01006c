/* decimal.h - converts a decimal number to the nearest double, ties to even, in every locale. */
#ifndef KR_IO_DECIMAL_H
#define KR_IO_DECIMAL_H

#include <stdbool.h>
#include <stddef.h>

/* text: -? digits [. digits] [e|E [+|-] digits], already checked. False if the number is beyond the largest double. */
bool kr_decimal_read(const char *text, size_t length, double *value);

#endif
