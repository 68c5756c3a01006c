/* check_model.h - a model against numbers that were recorded of it, or against itself. */
#ifndef KR_CHECK_CHECK_MODEL_H
#define KR_CHECK_CHECK_MODEL_H

#include "check/check_impl.h"

#include <krait/model.h>
#include <krait/tensor_file.h>

/* On a model in its context; false after an error there. */
bool check_against(check_tally *tally, kr_ctx *ctx, const kr_model *model);
bool check_model_invariants(check_tally *tally, kr_ctx *ctx, const kr_model *model);

/* The model of the options; NULL after an error. */
kr_model *check_model_load(const check_tally *tally, kr_ctx *ctx);

/* ---- tensors of a file against computed ones ---- */

/* The computed tensor that a tensor of the file is compared with. */
typedef enum recorded_part {
    RECORDED_LOGITS,
    RECORDED_STREAM, /* after one layer */
    RECORDED_HIDDEN, /* the input of the head */
    RECORDED_LOSS,
    RECORDED_CONV, /* final states of one layer */
    RECORDED_SSM,
    RECORDED_STEP_LOGITS, /* token by token */
    RECORDED_STEP_CONV,
    RECORDED_STEP_SSM,
    RECORDED_GENERATED,
    RECORDED_PADDED_LOGITS,
    RECORDED_GRADIENT,
    RECORDED_PARTS
} recorded_part;

/* One line of the table. The tensor is seen as [rows, tokens, rest], with as many of the two as `lead` says. */
typedef struct recorded_check {
    recorded_part part;
    int64_t layer;
    const kr_tensor *param; /* RECORDED_GRADIENT */
    const kr_tensor_file_item *item;
    const char *note; /* behind the name */
    int lead;
    double most;      /* that the error may be */
    kr_dtype dtype;   /* f32 or f64, at data; */
    const char *data; /* in the file, or in own, which is to be freed */
    void *own;
    kr_ctx *ctx;
    double scale;      /* the largest |want| */
    double difference; /* the largest |got - want|; NaN: one of them is none */
    int64_t at, seen;  /* where; how many elements were compared */
    double got, want;
    char trouble[200]; /* why it was not compared; "" if it was */
} recorded_check;

/* item [b s ..]; its number of rows and tokens is checked here, the rest against the computed tensor. */
recorded_check recorded_begin(kr_ctx *ctx, const kr_tensor_file *file, const kr_tensor_file_item *item,
                              recorded_part part, int lead, int64_t rows, int64_t tokens, double most);
void recorded_end(recorded_check *check);

/* got is the piece of it from this row and token on. */
void recorded_compare(recorded_check *check, const kr_tensor *got, int64_t row, int64_t token);

/* The same for one number of a tensor. */
void recorded_compare_value(recorded_check *check, int64_t at, double got);

void recorded_trouble(recorded_check *check, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

bool recorded_is_ok(const recorded_check *check);

/* The table, in the order of the parts. */
void recorded_report(const recorded_check *checks, int64_t count, check_tally *tally);

/* A name of a file as a terminal may have it. */
typedef struct recorded_name {
    char text[112];
} recorded_name;
recorded_name recorded_shown(const char *name);

#endif
