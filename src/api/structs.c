/* structs.c - the table of all sized structs, whose defaults are in the modules that take them. */
#include "base/sized.h"

#include <krait/experimental/check.h>
#include <krait/experimental/json.h>
#include <krait/experimental/train_plan.h>
#include <krait/krait.h>

#include <string.h>

#define KR_SIZED(id, type) KR_DECLARE_DEFAULTS(type);
#include "base/structs.def"
#undef KR_SIZED

typedef struct row {
    const void *defaults;
    size_t bytes;
} row;

static const row rows[] = {
#define KR_SIZED(id, type) [KR_STRUCT_##id] = { &type##_defaults, sizeof(type) },
#include "base/structs.def"
#undef KR_SIZED
};

void kr_struct_init(kr_struct_id id, void *object, size_t size)
{
    const size_t index = (size_t)id;
    if (!object || size < sizeof size) return;
    memset(object, 0, size);
    if (index < sizeof rows / sizeof *rows)
        memcpy(object, rows[index].defaults, size < rows[index].bytes ? size : rows[index].bytes);
    memcpy(object, &size, sizeof size);
}
