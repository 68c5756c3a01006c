/* text_buffer.h - formatted text appended to a buffer of fixed size. The length counts the text that did not fit too, as
 * snprintf does.
 *
 *   kr_text_buffer buffer = kr_text_buffer_of(text, bytes);
 *   kr_text_buffer_print(&buffer, "%d", 1);
 *   return buffer.length;                    // without the final zero
 */
#ifndef KR_BASE_TEXT_BUFFER_H
#define KR_BASE_TEXT_BUFFER_H

#include <krait/base.h>

#include <stdarg.h>
#include <stdio.h>

typedef struct kr_text_buffer {
    char *text;
    size_t capacity, length;
} kr_text_buffer;

static inline kr_text_buffer kr_text_buffer_of(char *text, size_t bytes)
{
    if (text && bytes) text[0] = '\0';
    return (kr_text_buffer){ text, text ? bytes : 0, 0 };
}

static inline void kr_text_buffer_print(kr_text_buffer *buffer, const char *format, ...) KR_PRINTF(2, 3);
static inline void kr_text_buffer_print(kr_text_buffer *buffer, const char *format, ...)
{
    const bool fits = buffer->length < buffer->capacity;
    va_list list;
    va_start(list, format);
    const int length = vsnprintf(fits ? buffer->text + buffer->length : NULL,
                                 fits ? buffer->capacity - buffer->length : 0, format, list);
    va_end(list);
    if (length > 0) buffer->length += (size_t)length;
}

#endif
