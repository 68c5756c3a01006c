/* info_config.c - describes a config in the letters of docs/notation.md, with the memory needed to run it. */
#include "cli/commands/cmd_info.h"

#include <math.h>

/* ---- sizes ---- */

/* For people by the letter of the axis, for programs by the name in official configs. Products are computed as doubles:
 * the config is untrusted and may overflow. */
static void size(cli_report *r, const char *letter, const char *key, double n, const char *what)
{
    cli_report_number(r, r->is_json ? key : letter, n, "%-8.0f %s, %s", n, what, key);
}

static double over(double a, double b)
{
    return b > 0 ? floor(a / b) : 0;
}

static void sizes_mamba1(cli_report *r, const kr_mamba1_config *c)
{
    size(r, "i", "d_inner", c->d_inner ? (double)c->d_inner : (double)c->expand * (double)c->d_model, "inner width");
    size(r, "r", "d_state", (double)c->state_rank, "state rank");
    size(r, "k", "d_conv", (double)c->conv_kernel, "convolution kernel size");
    size(r, "x", "dt_rank", c->dt_rank ? (double)c->dt_rank : ceil((double)c->d_model / 16), "rank of dt");
}

static void sizes_mamba2(cli_report *r, const kr_mamba2_config *c)
{
    const double inner = (double)c->expand * (double)c->d_model, ssm = c->d_ssm ? (double)c->d_ssm : inner;
    size(r, "i", "d_inner", inner, "inner width");
    if (c->d_ssm && ssm != inner) size(r, "h_p", "d_ssm", ssm, "width of the SSM");
    size(r, "h", "nheads", over(ssm, (double)c->per_head_dim), "heads");
    size(r, "p", "headdim", (double)c->per_head_dim, "channels per head");
    size(r, "r", "d_state", (double)c->state_rank, "state rank");
    size(r, "g", "ngroups", (double)c->n_groups, "groups of B and C");
    size(r, "k", "d_conv", (double)c->conv_kernel, "convolution kernel size");
    size(r, "v", "conv_dim", ssm + 2 * (double)c->n_groups * (double)c->state_rank, "channels of the convolution");
}

static void sizes_mamba3(cli_report *r, const kr_mamba3_config *c)
{
    const double inner = (double)c->expand * (double)c->d_model, rotated = (double)c->state_rank * c->rope_fraction;
    size(r, "i", "d_inner", inner, "inner width");
    size(r, "h", "nheads", over(inner, (double)c->per_head_dim), "heads");
    size(r, "p", "headdim", (double)c->per_head_dim, "channels per head");
    size(r, "r", "d_state", (double)c->state_rank, "state rank");
    size(r, "g", "ngroups", (double)c->n_groups, "groups of B and C");
    if (c->is_mimo) size(r, "m", "mimo_rank", (double)c->mimo_rank, "MIMO rank");
    if (c->rotation == KR_ROTATION_QUATERNION) size(r, "j", "quaternion_blocks", over(rotated, 4), "quaternion blocks");
    else size(r, "a", "num_rope_angles", over(rotated, 2), "rotation angles");
}

static double padded_vocab(const kr_network_config *network)
{
    const double multiple = network->pad_vocab_size_multiple > 0 ? (double)network->pad_vocab_size_multiple : 1;
    return ceil((double)network->vocab_size / multiple) * multiple;
}

static void sizes(cli_report *r, const kr_model_config *c)
{
    const double rows = padded_vocab(c->network);
    cli_report_open(r, "sizes", false);
    size(r, "d", "d_model", (double)kr_model_config_d_model(c), "model width");
    switch (c->family) {
    case KR_FAMILY_MAMBA1: sizes_mamba1(r, c->mamba1); break;
    case KR_FAMILY_MAMBA2: sizes_mamba2(r, c->mamba2); break;
    case KR_FAMILY_MAMBA3: sizes_mamba3(r, c->mamba3); break;
    default: break; /* a family of another program */
    }
    if (c->network->input_size) {
        size(r, "f", "input_size", (double)c->network->input_size, "input features");
        size(r, "o", "output_size", (double)c->network->output_size, "outputs");
        cli_report_close(r);
        return;
    }
    size(r, "w", "vocab_size", (double)c->network->vocab_size, "vocabulary");
    if (rows != (double)c->network->vocab_size) size(r, "", "vocab_rows", rows, "including padding");
    cli_report_close(r);
}

/* ---- settings ---- */

static void settings_mamba2(cli_report *r, const kr_mamba2_config *c)
{
    if (!c->has_norm) cli_report_text(r, "gated_norm", "none");
    else if (c->n_groups > 1) cli_report_text(r, "gated_norm", c->norm_per_group ? "each group" : "whole width");
}

static void settings_mamba3(cli_report *r, const kr_mamba3_config *c)
{
    const bool is_complex = c->rotation == KR_ROTATION_COMPLEX;
    cli_report_text(r, "rotation", "%s, %g of the state", is_complex ? "complex" : "quaternion", c->rope_fraction);
    cli_report_text(r, "a_activation", "%s", c->a_activation == KR_A_ACTIVATION_SOFTPLUS ? "softplus" : "heavy-tail");
    if (c->has_outproj_norm) cli_report_text(r, "outproj_norm", "each head");
}

static void settings_layers(cli_report *r, const kr_layers_config *c)
{
    static const char *const schedules[] = { "cyclic", "stretched", "custom" };
    if (c->n_virtual && (c->n_virtual != c->n_layers || c->schedule == KR_SCHEDULE_CUSTOM))
        cli_report_text(r, "virtual_layers", "%lld, %s", (long long)c->n_virtual,
                        schedules[(unsigned)c->schedule < 3 ? (unsigned)c->schedule : 2]);
    if (c->d_intermediate) {
        const double multiple = c->mlp_multiple_of > 0 ? (double)c->mlp_multiple_of : 1;
        const double width = ceil((double)c->d_intermediate / multiple) * multiple;
        cli_report_number(r, "mlp", width, "%.0f", width);
    }
    if (c->residual.kind == KR_RESIDUAL_MULTI_GATE)
        cli_report_text(r, "residual", "multi-gate, %lld streams", (long long)c->residual.n_stream);
}

/* ---- memory needs ---- */

static void memory(info_run *run, const kr_model_size *measured)
{
    cli_report *r = &run->report;
    const info_values *v = run->values;
    const double weights = (double)measured->weight_bytes, states = (double)v->batch * (double)measured->state_bytes;
    const double prefill = (double)v->batch * (double)v->tokens * (double)measured->prefill_bytes;
    const char *s = v->batch == 1 ? "" : "s";
    cli_report_line(r, "memory to run it, for %lld sequence%s and %lld tokens at once", (long long)v->batch, s,
                    (long long)v->tokens);
    cli_report_open(r, r->is_json ? "memory" : NULL, false);
    if (r->is_json) {
        cli_report_count(r, "batch", v->batch);
        cli_report_count(r, "tokens", v->tokens);
    }
    cli_report_number(r, "weights", weights, "%s", cli_bytes_text(weights).text);
    cli_report_number(r, "states", states, "%s, whatever the sequence length", cli_bytes_text(states).text);
    cli_report_number(r, "prefill", prefill, "about %s", cli_bytes_text(prefill).text);
    cli_report_number(r, "total", weights + states + prefill, "%s", cli_bytes_text(weights + states + prefill).text);
    cli_report_close(r);
}

static kr_dtype dtype_of(const kr_model_config *c)
{
    return c->family == KR_FAMILY_MAMBA1   ? c->mamba1->dtype
           : c->family == KR_FAMILY_MAMBA2 ? c->mamba2->dtype
           : c->family == KR_FAMILY_MAMBA3 ? c->mamba3->dtype
                                           : ((const kr_config_head *)c->registered)->dtype;
}

void info_config(info_run *run, const kr_model_config *c)
{
    cli_report *r = &run->report;
    kr_model_size measured = { 0 };
    cli_report_text(r, "family", "%s", kr_family_name(c->family));
    cli_report_text(r, "layout", "%s", kr_layout_name(c->layout));
    cli_report_count(r, "layers", c->layers->n_layers);
    settings_layers(r, c->layers);
    sizes(r, c);
    if (c->family == KR_FAMILY_MAMBA2) settings_mamba2(r, c->mamba2);
    if (c->family == KR_FAMILY_MAMBA3) settings_mamba3(r, c->mamba3);
    if (!c->network->input_size)
        cli_report_text(r, "head", c->network->tie_embeddings ? "tied to the embedding" : "separate");
    if (c->n_eos > 0 && c->n_eos <= KR_MAX_EOS) cli_report_counts(r, "eos", c->n_eos, c->eos);
    if (kr_model_measure(run->ctx, c, &measured) == KR_OK) {
        cli_report_number(r, "parameters", (double)measured.parameters, "%s (%lld)",
                          cli_count_text((double)measured.parameters).text, (long long)measured.parameters);
        cli_report_text(r, "dtype", "%s", kr_dtype_name(dtype_of(c)));
        memory(run, &measured);
    }
    info_take_error(run);
}
