/* pickle_value.h - the values of the pickle machine, and its steps that create objects. */
#ifndef KR_IO_PICKLE_VALUE_H
#define KR_IO_PICKLE_VALUE_H

#include "io/pickle.h"

typedef enum value_kind {
    VALUE_NOTHING = 0, /* an empty slot of the memo */
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INTEGER,
    VALUE_FLOAT,
    VALUE_TEXT,
    VALUE_TUPLE,
    VALUE_DICT,
    VALUE_FUNCTION,
    VALUE_STORAGE_TYPE,
    VALUE_STORAGE,
    VALUE_TENSOR
} value_kind;

/* Functions that REDUCE can call. */
typedef enum function { MAKE_ORDERED_DICT, REBUILD_TENSOR, REBUILD_PARAMETER } function;

typedef struct value value;
typedef struct dict dict;
typedef struct dict_block dict_block;

typedef struct storage {
    const kr_element_type *type;
    const char *key;
    size_t key_length;
    int64_t count; /* elements */
} storage;

struct value {
    value_kind kind;
    uint32_t length; /* bytes of a text, values of a tuple */
    union {
        int64_t integer; /* of a bool too */
        const char *text;
        const value *items;
        dict *dict;
        function function;
        const kr_element_type *storage_type;
        const storage *storage;
        const kr_pickle_tensor *tensor;
    };
};

/* Pairs of key and value in order of insertion: `count` contiguous ones. */
struct dict_block {
    dict_block *next;
    int64_t count;
    value pairs[]; /* [2 count] */
};

struct dict {
    bool is_ordered; /* an OrderedDict, which can have attributes */
    dict_block *first, *last;
    int64_t count; /* pairs */
};

typedef struct machine {
    kr_ctx *ctx;
    kr_arena arena; /* objects; freed with the machine */
    const unsigned char *program;
    size_t bytes, at;
    int64_t nobjects;
    struct {
        value *at;
        size_t count, capacity;
    } stack;
    struct {
        value *at;
        size_t count, capacity; /* used slots; capacity */
    } memo;
    struct {
        size_t *at; /* heights of the stack */
        size_t count, capacity;
    } marks;
} machine;

/* Counted and limited; NULL with the context's error set. */
void *kr_pickle_alloc(machine *m, size_t bytes);

/* Each creates a value; false with the context's error set. */
bool kr_pickle_global(machine *m, const char *module, size_t module_length, const char *name, size_t name_length,
                      value *made);
bool kr_pickle_storage(machine *m, const value *id, value *made);
bool kr_pickle_call(machine *m, const value *called, const value *arguments, value *made);
bool kr_pickle_dict(machine *m, bool is_ordered, value *made);

/* Adds n pairs (2 n values) to a dictionary. */
bool kr_pickle_put(machine *m, const value *target, const value *pairs, size_t n);

/* Sets an object's attributes: an OrderedDict's _metadata, which is dropped. */
bool kr_pickle_set_state(machine *m, const value *target, const value *state);

/* The tensors of the program's result. */
bool kr_pickle_finish(machine *m, const value *root, kr_arena *arena, kr_pickle *result);

/* "a tensor", "a tuple", ...: for messages. */
const char *kr_pickle_kind_name(value_kind kind);

#endif
