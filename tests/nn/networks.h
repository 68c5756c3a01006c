/* networks.h - one stack or network of any family, run over the same tokens in different ways, with all results as f64.
 *
 * A recipe is what it is made by: the configs, small. A net is one of them in a context of its own. A problem is what
 * is computed, a way which calls compute it. Tokens, parameters and the gradients of results are noise that depends on
 * the seed, the tensor and the index alone, so that nets of different types, and ways of different calls, have the same
 * numbers. Outcomes are those of block_run.h: y, the final state, then the gradients of x, state and parameters.
 */
#ifndef KR_TESTS_NN_NETWORKS_H
#define KR_TESTS_NN_NETWORKS_H

#include "nn/layers_impl.h"
#include "nn/network_impl.h"
#include "tests/nn/block_run.h"

#include <krait/network.h>

typedef enum net_ends { BARE, VOCAB, LATENT } net_ends; /* a stack by itself, or a network */

typedef struct net_recipe {
    kr_family family;
    net_ends ends;
    kr_mamba1_config mamba1; /* the family's is used */
    kr_mamba2_config mamba2;
    kr_mamba3_config mamba3;
    kr_layers_config layers; /* block is filled in by net_open */
    kr_network_config network;
} net_recipe;

enum { NET_FAMILIES = 3, NET_D = 8, NET_INPUT = 3, NET_OUTPUT = 5, NET_VOCAB = 11 };

/* Two layers of d_model 8, f32, everything else as small; from 11 ids to 16 logits, or from 3 to 5 features. */
net_recipe net_recipe_of(kr_family family, net_ends ends);
void net_recipe_type(net_recipe *recipe, kr_dtype dtype);

/* The network's or the stack's configs with their pointers, for constructors. They point into the recipe. */
const kr_layers_config *net_layers_config(net_recipe *recipe);
const kr_network_config *net_network_config(net_recipe *recipe);

enum { NET_OUTPUTS = 256 };

typedef struct net {
    const char *name;
    net_recipe recipe;
    kr_dtype dtype;
    kr_ctx *ctx;
    kr_tape *tape;
    kr_layers *stack;    /* BARE */
    kr_network *network; /* the others */
    const kr_layers *layers;
    kr_params *params;
    const kr_block_kind *kind;
    int64_t noutputs;       /* of the last run: tokens and class tokens ... */
    bool seen[NET_OUTPUTS]; /* ... and those that its calls returned */
} net;

/* Parameters are moved off their initial values, and steps are made longer, as in rig_open. False after a failed check. */
bool net_open(net *n, const char *name, const net_recipe *recipe, int threads);
bool net_open_isa(net *n, const char *name, const net_recipe *recipe, int threads, const char *isa);
void net_close(net *n);

typedef struct net_problem {
    int64_t nb, ns;
    bool from_state;       /* the state after three other tokens; false: initial */
    const int32_t *starts; /* [b s] or NULL: where sequences begin ... */
    bool is_reset;         /* ... and forget: states are one for each row; false: one for each sequence */
    const int32_t *mask;   /* [b s] or NULL: 0 where a token is padding; forwards only */
    bool is_announced;     /* a state with the announced length ... */
    int64_t full_len;      /* ... which is ns if 0 */
} net_problem;

enum { PRIME = -2, NET_PARTS = 24 };

/* Calls over all rows at once, cut along the sequence: parts[i] tokens by a forward, STEP for one token by a step, PRIME
 * for a prime, which takes none; all by one forward if there are none. */
typedef struct net_mode {
    const char *name;
    int64_t parts[NET_PARTS];
    bool alone;          /* each row, or each sequence where there are starts, as a batch of one */
    bool drop_state;     /* the calls' own; one forward only */
    bool last_only;      /* last_logits_only */
    bool without_states; /* final states are no results */
    const bool *only;    /* outputs that are results; NULL: all */
    const kr_ssd_path *path;
} net_mode;

/* Runs it forwards and backwards. Empty after an error, which is a failed check. */
outcome *net_run(net *n, const net_problem *p, const net_mode *way);

/* Holds each way against the whole by one forward, as far as the way's calls return what there is. */
void net_same(net *n, const net_problem *p, const net_mode *ways, int count);

/* Two outcomes of one problem; `way` names the first. */
void net_compare(const net *n, const net_problem *p, const char *way, const outcome *got, const outcome *want);

/* x of a problem, as a leaf: features, or ids. */
kr_tensor *net_input(net *n, kr_tape *tape, int64_t nb, int64_t ns);

/* The caller's state after three tokens that are not the problem's; to be destroyed. */
kr_state *net_random_state(net *n, int64_t batch);

/* One call, whatever the net is. mode is that of kr_run. */
typedef struct net_out {
    kr_tensor *y;
    kr_state *state;
} net_out;
net_out net_call(net *n, kr_tape *tape, kr_run_mode mode, kr_tensor *x, const kr_call *call);

/* Noise that depends on the seed, on `stream` and on the index. */
double net_noise(int stream, int64_t i);

/* Relative to the largest element of a tensor or to net_floor: sums of some hundred terms in different orders, hence some
 * units in the last place; in gradients, sums of such sums over all tokens. */
double net_value_tolerance(kr_dtype dtype);
double net_gradient_tolerance(kr_dtype dtype);
#define NET_FLOOR 0.1

/* The gradient of a parameter by name: its largest element, or 0 where none reached it. */
double net_grad_size(const net *n, const char *name);

#endif
