/* weights_impl.h - inside of open weights: files, and the tensors of all of them. */
#ifndef KR_IO_WEIGHTS_IMPL_H
#define KR_IO_WEIGHTS_IMPL_H

#include "io/convert.h"
#include "io/file.h"

#include <krait/safetensors.h>
#include <krait/weights.h>

typedef struct kr_weights_part {
    const char *path;
    kr_file file;
    kr_container container;
    kr_safetensors *safetensors; /* of that container */
    const void **tensors;        /* of the other (kr_elements), in the order of their data */
    int64_t count;
} kr_weights_part;

typedef struct kr_weights_entry {
    kr_weights_item item;
    kr_elements elements;
} kr_weights_entry;

struct kr_weights {
    kr_ctx *ctx;
    kr_arena arena; /* all of the below, and what the containers make */
    int nparts;
    kr_weights_part *parts;
    int64_t count;
    kr_weights_entry *entries;
    const void **by_name; /* the same (kr_weights_entry) in the order of their names */
};

/* The names that are looked for in a folder, in their order; NULL behind the last. */
extern const char *const kr_weights_names[];

/* All below: false or NULL with the context's error set. */

/* Opens the files; what they have open after a failure is closed with the weights. */
bool kr_weights_open_parts(kr_weights *weights, const char *const *paths, int count);

/* Brings the tensors of all files together; each name may occur once. */
bool kr_weights_gather(kr_weights *weights);

/* Opens all files that an index names, and holds their tensors against it. */
bool kr_weights_open_index(kr_weights *weights, const char *path);

#endif
