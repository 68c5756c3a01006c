/* names.h - names of enum values, which kr_enum_name (src/api/enums.c) looks up. */
#ifndef KR_BASE_NAMES_H
#define KR_BASE_NAMES_H

typedef struct kr_names {
    int count;
    const char *const *name; /* NULL: the value has no name */
} kr_names;

/* The names of an enum's values from 0 on, in the module that has it: KR_NAMES(kr_layout, "official", "hf"); */
#define KR_DECLARE_NAMES(type) extern const kr_names type##_names
#define KR_NAMES(type, ...)                                                                                            \
    KR_DECLARE_NAMES(type);                                                                                            \
    const kr_names type##_names = { (int)(sizeof((const char *const[]){ __VA_ARGS__ }) / sizeof(const char *)),        \
                                    (const char *const[]){ __VA_ARGS__ } }

#endif
