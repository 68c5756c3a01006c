/* config_values.h - model configs by value: drawn, changed and compared field by field. */
#ifndef KR_TESTS_MODEL_CONFIG_VALUES_H
#define KR_TESTS_MODEL_CONFIG_VALUES_H

#include "model/model_config_impl.h"
#include "tests/harness.h"

/* A config of these values, until the next call. */
static inline const kr_model_config *config_of(const kr_model_values *values)
{
    static kr_config_box box;
    box.values = *values;
    kr_config_box_publish(&box);
    return &box.config;
}

/* The values of a config that has all its parts. */
static inline kr_model_values values_of(kr_ctx *context, const kr_model_config *config)
{
    kr_model_values values;
    CHECK(kr_model_values_take(context, "values_of", &values, config), "%s", kr_ctx_message(context));
    return values;
}

#endif
