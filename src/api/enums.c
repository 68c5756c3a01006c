/* enums.c - kr_enum_name: the names of enum values, which stand in the modules that have the enums. */
#include "base/names.h"
#include "nn/block_impl.h"

#include <krait/krait.h>

KR_DECLARE_NAMES(kr_status);
KR_DECLARE_NAMES(kr_dtype);
KR_DECLARE_NAMES(kr_layout);
KR_DECLARE_NAMES(kr_lr_kind);
KR_DECLARE_NAMES(kr_optimizer_kind);

static const char *name_in(const kr_names *names, int value)
{
    return value >= 0 && value < names->count ? names->name[value] : NULL;
}

static const char *family_name(kr_family family)
{
    const kr_block_kind *kind = kr_block_kind_of(family);
    return kind ? kind->name : NULL;
}

const char *kr_enum_name(kr_enum_id id, int value)
{
    const char *name = NULL;
    switch (id) {
    case KR_ENUM_STATUS: name = name_in(&kr_status_names, value); break;
    case KR_ENUM_DTYPE: name = name_in(&kr_dtype_names, value); break;
    case KR_ENUM_FAMILY: name = family_name((kr_family)value); break;
    case KR_ENUM_LAYOUT: name = name_in(&kr_layout_names, value); break;
    case KR_ENUM_LR_KIND: name = name_in(&kr_lr_kind_names, value); break;
    case KR_ENUM_OPTIMIZER_KIND: name = name_in(&kr_optimizer_kind_names, value); break;
    }
    return name ? name : "?";
}
