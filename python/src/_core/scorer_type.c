/* scorer_type.c - krait._core.Scorer: sums the log-probabilities of a text of any length, read in pieces with the state
 * carried from one to the next. */
#include "training.h"

typedef struct krpy_scorer {
    PyObject_HEAD krpy_context *context;
    PyObject *model, *tokenizer; /* tokenizer: may be None */
    const kr_network *net;
    const kr_tokenizer *tok;
    krpy_handle *state_handle, *tape_handle;
    kr_state *state;
    kr_tape *tape;
} krpy_scorer;

/* Tokens whose log-probabilities are computed at once: a table of them is small compared to the logits. */
enum { PART = 64 };

typedef struct sums {
    double nats;
    int64_t bytes;
} sums;

/* logits [1 n w] and the tokens that follow -> adds their negative log-probabilities, and their bytes. */
static void add_scores(krpy_scorer *self, kr_tensor *logits_bsw, const int32_t *next, int64_t count, sums *total)
{
    float logprobs[PART];
    for (int64_t at = 0; at < count && !kr_ctx_failed(self->context->ctx); at += PART) {
        const int64_t n = count - at < PART ? count - at : PART;
        const kr_scope scope = kr_no_grad_begin(self->tape);
        kr_tensor *part_bsw = kr_cast(self->tape, kr_slice(self->tape, logits_bsw, 1, at, at + n), KR_DTYPE_F32);
        kr_tensor *id_bsw = kr_from_data(self->tape, KR_DTYPE_I32, KR_SHAPE(1, n, 1), next + at);
        kr_tensor *logprob_bsw = kr_gather(self->tape, kr_log_softmax(self->tape, part_bsw, -1), -1, id_bsw);
        const bool is_read = logprob_bsw && kr_tensor_read(logprob_bsw, KR_DTYPE_F32, logprobs, n) == KR_OK;
        kr_no_grad_end(self->tape, scope, 0, NULL);
        for (int64_t i = 0; is_read && i < n; i++) {
            size_t bytes = 0;
            if (self->tok) kr_tokenizer_token(self->tok, next[at + i], &bytes);
            total->nats -= (double)logprobs[i];
            total->bytes += (int64_t)bytes;
        }
    }
}

/* Reads ids[0 .. n-1), which predict ids[1 .. n). */
static void score_ids(krpy_scorer *self, const int32_t *ids, int64_t count, sums *total)
{
    kr_call call;
    kr_call_init(&call);
    call.state = self->state;
    kr_tensor *id_bs = kr_view_data(self->tape, KR_DTYPE_I32, KR_SHAPE(1, count - 1), NULL, ids);
    const kr_network_out out = kr_network_forward(self->tape, self->net, id_bs, &call);
    if (out.y && kr_state_copy(self->state, out.state) == KR_OK) add_scores(self, out.y, ids + 1, count - 1, total);
    kr_tape_reset(self->tape);
}

/* score(ids) -> (nats, bytes): ids is a buffer of i32, of which the first has been predicted, or is not to be. */
static PyObject *scorer_score(PyObject *object, PyObject *ids)
{
    krpy_scorer *self = (krpy_scorer *)object;
    Py_buffer view;
    sums total = { 0 };
    if (PyObject_GetBuffer(ids, &view, PyBUF_C_CONTIGUOUS) < 0) return NULL;
    const int64_t count = view.len / (int64_t)sizeof(int32_t);
    krpy_enter(self->context);
    if (count > 1) KRPY_COMPUTE(self->context, score_ids(self, view.buf, count, &total));
    const bool is_well = krpy_leave(self->context);
    PyBuffer_Release(&view);
    return is_well ? Py_BuildValue("dL", total.nats, (long long)total.bytes) : NULL;
}

static PyObject *scorer_reset(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    krpy_scorer *self = (krpy_scorer *)object;
    krpy_enter(self->context);
    KRPY_COMPUTE(self->context, kr_state_zero(self->state));
    return krpy_leave(self->context) ? Py_NewRef(Py_None) : NULL;
}

static void destroy_state(void *state)
{
    kr_state_destroy(state);
}

static void destroy_tape(void *tape)
{
    kr_tape_destroy(tape);
}

static bool open_scorer(krpy_scorer *self)
{
    krpy_context *c = self->context;
    self->state_handle = krpy_handle_new();
    self->tape_handle = self->state_handle ? krpy_handle_new() : NULL;
    if (!self->tape_handle) return false;
    krpy_enter(c);
    KRPY_COMPUTE(c, self->state = kr_state_create(c->ctx, kr_network_layers(self->net), 1);
                 self->tape = kr_tape_create(c->ctx, KR_TAPE_NO_GRAD));
    *self->state_handle = (krpy_handle){ .destroy = destroy_state, .object = self->state };
    *self->tape_handle = (krpy_handle){ .destroy = destroy_tape, .object = self->tape };
    return krpy_leave(c);
}

/* Scorer(model, tokenizer) */
static PyObject *scorer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = { "", "", NULL };
    krpy_module *module = PyType_GetModuleState(type);
    PyObject *model, *tokenizer;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O:Scorer", names, module->model, &model, &tokenizer)) return NULL;
    if (tokenizer != Py_None && !Py_IS_TYPE(tokenizer, module->tokenizer)) {
        PyErr_SetString(PyExc_TypeError, "tokenizer must be a Tokenizer");
        return NULL;
    }
    krpy_scorer *self = krpy_alloc(type);
    if (!self) return NULL;
    self->context = (krpy_context *)Py_NewRef((PyObject *)((krpy_model *)model)->context);
    self->model = Py_NewRef(model);
    self->tokenizer = Py_NewRef(tokenizer);
    self->net = ((krpy_model *)model)->net;
    self->tok = tokenizer != Py_None ? ((krpy_tokenizer *)tokenizer)->tokenizer : NULL;
    if (open_scorer(self)) return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static int scorer_traverse(PyObject *object, visitproc visit, void *arg)
{
    krpy_scorer *self = (krpy_scorer *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->context);
    Py_VISIT(self->model);
    Py_VISIT(self->tokenizer);
    return 0;
}

static void scorer_dealloc(PyObject *object)
{
    krpy_scorer *self = (krpy_scorer *)object;
    PyObject_GC_UnTrack(object);
    if (self->context) {
        krpy_discard(self->context, self->tape_handle);
        krpy_discard(self->context, self->state_handle);
    }
    Py_CLEAR(self->tokenizer);
    Py_CLEAR(self->model);
    Py_CLEAR(self->context);
    krpy_free(object);
}

/* The tokens with which texts of the model begin, as a tuple. */
static PyObject *get_begin(PyObject *object, void *closure)
{
    (void)closure;
    int count = 0;
    const int32_t *ids = kr_text_model_bos(((krpy_model *)((krpy_scorer *)object)->model)->text, &count);
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple && i < count; i++) {
        PyObject *id = PyLong_FromLong(ids[i]);
        if (!id || PyTuple_SetItem(tuple, i, id) < 0) Py_CLEAR(tuple);
    }
    return tuple;
}

static PyGetSetDef scorer_attributes[] = {
    { "begin", get_begin, NULL, "The tokens with which texts of the model begin.", NULL },
    { 0 },
};

static PyMethodDef scorer_methods[] = {
    { "score", scorer_score, METH_O,
      "score($self, ids, /)\n--\n\n(nats, bytes) of all ids but the first, each predicted from those before it." },
    { "reset", scorer_reset, METH_NOARGS, "reset($self, /)\n--\n\nForgets what was read." },
    { 0 },
};

static PyType_Slot scorer_slots[] = {
    { Py_tp_doc, "Scorer(model, tokenizer, /)\n--\n\nSums log-probabilities of a text; see krait.eval." },
    { Py_tp_new, scorer_new },
    { Py_tp_dealloc, scorer_dealloc },
    { Py_tp_traverse, scorer_traverse },
    { Py_tp_methods, scorer_methods },
    { Py_tp_getset, scorer_attributes },
    { 0, NULL },
};

PyType_Spec krpy_scorer_spec = {
    .name = "krait._core.Scorer",
    .basicsize = sizeof(krpy_scorer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = scorer_slots,
};
