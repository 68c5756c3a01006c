/* trainer_type.c - krait._core.Trainer: training steps, evaluations and checkpoints, with a callback after each step. The
 * class krait.Run and the function krait.train name the options. */
#include "option_rows.h"
#include "training.h"

typedef struct krpy_trainer {
    PyObject_HEAD krpy_context *context;
    krpy_handle *handle;
    kr_trainer *trainer;
    PyObject *model, *loader, *validation; /* must outlive the trainer; validation may be NULL */
    PyObject *on_step;                     /* while run() is in progress */
    PyObject *error;                       /* raised in on_step; run() raises it after the checkpoint */
} krpy_trainer;

/* ---- options ---- */

static const char *const losses[] = { "cross-entropy", "soft-cross-entropy", "bce", "mse", "l1",
                                      "huber",         "quantile",           NULL };
static const char *const schedules[] = { "constant", "cosine", "linear", "wsd", NULL };
static const char *const shapes[] = { "linear", "cosine", "sqrt", NULL };
static const char *const optimizers[] = { "adamw", "sgd", "muon", NULL };
static const char *const ratios[] = { "match-rms", "original", "original-inputs", "plain", NULL };

static const krpy_option run_rows[] = {
    { "steps", KRPY_INT64, offsetof(kr_train_options, steps), NULL },
    { "accumulate", KRPY_INT64, offsetof(kr_train_options, accumulate), NULL },
    { "loss", KRPY_WORD, offsetof(kr_train_options, loss), losses },
    { "label_smoothing", KRPY_DOUBLE, offsetof(kr_train_options, label_smoothing), NULL },
    { "huber_delta", KRPY_DOUBLE, offsetof(kr_train_options, huber_delta), NULL },
    { "quantile", KRPY_DOUBLE, offsetof(kr_train_options, quantile), NULL },
    { "dropout", KRPY_DOUBLE, offsetof(kr_train_options, dropout), NULL },
    { "eval_every", KRPY_INT64, offsetof(kr_train_options, eval_every), NULL },
    { "eval_batches", KRPY_INT64, offsetof(kr_train_options, eval_batches), NULL },
    { "folder", KRPY_PATH, offsetof(kr_train_options, folder), NULL },
    { "save_every", KRPY_INT64, offsetof(kr_train_options, save_every), NULL },
    { "keep_last", KRPY_INT, offsetof(kr_train_options, keep_last), NULL },
    { "keep_best", KRPY_BOOL, offsetof(kr_train_options, keep_best), NULL },
    { 0 },
};
static const krpy_option schedule_rows[] = {
    { "lr_schedule", KRPY_WORD, offsetof(kr_lr_schedule, kind), schedules },
    { "lr", KRPY_DOUBLE, offsetof(kr_lr_schedule, max_lr), NULL },
    { "min_lr", KRPY_DOUBLE, offsetof(kr_lr_schedule, min_lr), NULL },
    { "warmup", KRPY_INT64, offsetof(kr_lr_schedule, warmup_steps), NULL },
    { "decay_steps", KRPY_INT64, offsetof(kr_lr_schedule, decay_steps), NULL },
    { "decay_shape", KRPY_WORD, offsetof(kr_lr_schedule, shape), shapes },
    { 0 },
};
static const krpy_option optimizer_rows[] = {
    { "optimizer", KRPY_WORD, offsetof(kr_optimizer_options, kind), optimizers },
    { "weight_decay", KRPY_DOUBLE, offsetof(kr_optimizer_options, weight_decay), NULL },
    { "decay_all", KRPY_BOOL, offsetof(kr_optimizer_options, decay_all), NULL },
    { "cautious", KRPY_BOOL, offsetof(kr_optimizer_options, is_cautious), NULL },
    { "beta1", KRPY_DOUBLE, offsetof(kr_optimizer_options, beta1), NULL },
    { "beta2", KRPY_DOUBLE, offsetof(kr_optimizer_options, beta2), NULL },
    { "eps", KRPY_DOUBLE, offsetof(kr_optimizer_options, eps), NULL },
    { "sgd_momentum", KRPY_DOUBLE, offsetof(kr_optimizer_options, momentum), NULL },
    { "dampening", KRPY_DOUBLE, offsetof(kr_optimizer_options, dampening), NULL },
    { "sgd_nesterov", KRPY_BOOL, offsetof(kr_optimizer_options, use_nesterov), NULL },
    { "muon_momentum", KRPY_DOUBLE, offsetof(kr_optimizer_options, muon_momentum), NULL },
    { "muon_nesterov", KRPY_BOOL, offsetof(kr_optimizer_options, use_muon_nesterov), NULL },
    { "muon_steps", KRPY_INT, offsetof(kr_optimizer_options, muon_steps), NULL },
    { "muon_ratio", KRPY_WORD, offsetof(kr_optimizer_options, muon_ratio), ratios },
    { "muon_decay", KRPY_DOUBLE, offsetof(kr_optimizer_options, muon_weight_decay), NULL },
    { "clip_norm", KRPY_DOUBLE, offsetof(kr_optimizer_options, clip_norm), NULL },
    { "clip_value", KRPY_DOUBLE, offsetof(kr_optimizer_options, clip_value), NULL },
    { "ema", KRPY_DOUBLE, offsetof(kr_optimizer_options, ema_decay), NULL },
    { 0 },
};

/* All structs of a run, and the texts that they point to. */
typedef struct run_options {
    kr_train_options run;
    kr_optimizer_options optimizer;
    kr_lr_schedule schedule;
    const char *files[4];    /* folder/tokenizer.json, ... */
    const char *without[32]; /* names of segments that AdamW updates */
} run_options;

/* A list of str (or of bytes) as texts, which the list keeps. -1 with an exception. */
static int take_texts(const char *name, PyObject *list, int most, const char **texts)
{
    if (!list || list == Py_None) return 0;
    if (!PyList_Check(list) || PyList_Size(list) > most) {
        PyErr_Format(PyExc_TypeError, "%s must be a list of at most %d texts", name, most);
        return -1;
    }
    const int count = (int)PyList_Size(list);
    for (int i = 0; i < count; i++) {
        PyObject *item = PyList_GetItem(list, i);
        if (PyBytes_Check(item)) texts[i] = PyBytes_AsString(item);
        else if (!krpy_get_text(name, item, &texts[i])) return -1;
        if (!texts[i]) return -1;
    }
    return count;
}

static bool take_run_options(PyObject *dict, PyObject *files, PyObject *without, run_options *o)
{
    static const krpy_option *const tables[] = { run_rows, schedule_rows, optimizer_rows, NULL };
    kr_train_options_init(&o->run);
    kr_optimizer_options_init(&o->optimizer);
    kr_lr_schedule_init(&o->schedule);
    Py_ssize_t taken = 0;
    if (!krpy_take_options(dict, run_rows, &o->run, &taken) ||
        !krpy_take_options(dict, schedule_rows, &o->schedule, &taken) ||
        !krpy_take_options(dict, optimizer_rows, &o->optimizer, &taken) ||
        !krpy_all_taken("Trainer", dict, taken, tables))
        return false;
    o->run.n_extra_files = take_texts("files", files, 4, o->files);
    o->optimizer.n_without = take_texts("muon_without", without, 32, o->without);
    o->run.extra_files = o->files;
    o->optimizer.without = o->without;
    o->run.schedule = &o->schedule;
    o->run.optimizer = &o->optimizer;
    return o->run.n_extra_files >= 0 && o->optimizer.n_without >= 0;
}

/* ---- progress ---- */

static double accuracy_of(int64_t right, int64_t scored)
{
    return scored > 0 ? (double)right / (double)scored : Py_NAN;
}

/* The fields of krait.Progress that the library knows, in their order. */
static PyObject *progress_of(const kr_train_progress *p)
{
    return Py_BuildValue("LLLddddLddLdNNN", (long long)p->step, (long long)p->epoch, (long long)p->n_positions, p->loss,
                         accuracy_of(p->n_right, p->n_scored), p->lr, p->grad_norm, (long long)p->eval_step,
                         p->eval_loss, p->eval_accuracy, (long long)p->best_step, p->best_loss,
                         PyBool_FromLong(p->is_evaluated), PyBool_FromLong(p->is_saved), PyBool_FromLong(p->is_done));
}

/* Calls on_step. False stops the run: the callback returned False or raised, or a signal handler raised. */
static bool call_on_step(krpy_trainer *self, const kr_train_progress *p)
{
    if (PyErr_CheckSignals() < 0) return false;
    if (self->on_step == Py_None) return true;
    PyObject *progress = progress_of(p);
    PyObject *answer = progress ? PyObject_CallFunctionObjArgs(self->on_step, progress, NULL) : NULL;
    Py_XDECREF(progress);
    if (!answer) return false;
    const bool is_wanted = answer != Py_False;
    Py_DECREF(answer);
    return is_wanted;
}

/* Signals are heard here, so that Ctrl-C leaves a checkpoint of the last whole step. */
static bool on_step(void *user, kr_trainer *trainer, const kr_train_progress *p)
{
    (void)trainer;
    krpy_trainer *self = user;
    krpy_callback_begin(self->context);
    bool is_wanted = call_on_step(self, p);
    if (PyErr_Occurred()) {
        PyObject *type, *traceback;
        PyErr_Fetch(&type, &self->error, &traceback);
        PyErr_NormalizeException(&type, &self->error, &traceback);
        if (self->error && traceback) PyException_SetTraceback(self->error, traceback);
        Py_XDECREF(type);
        Py_XDECREF(traceback);
        is_wanted = false;
    }
    krpy_callback_end(self->context);
    return is_wanted;
}

/* ---- the object ---- */

static void destroy_trainer(void *trainer)
{
    kr_trainer_destroy(trainer);
}

static bool keep_loader(krpy_module *module, krpy_context *c, const char *name, PyObject *object, PyObject **kept,
                        kr_loader **loader)
{
    *loader = NULL;
    if (object == Py_None) return true;
    if (!Py_IS_TYPE(object, module->loader)) {
        PyErr_Format(PyExc_TypeError, "%s must be a Loader", name);
        return false;
    }
    if (((krpy_loader *)object)->source->context != c) {
        PyErr_Format(PyExc_ValueError, "%s and model belong to different contexts", name);
        return false;
    }
    *kept = Py_NewRef(object);
    *loader = ((krpy_loader *)object)->loader;
    return true;
}

static bool open_trainer(krpy_trainer *self, kr_model *model, kr_loader *loader, run_options *o)
{
    krpy_context *c = self->context;
    self->handle = krpy_handle_new();
    if (!self->handle) return false;
    o->run.on_step = on_step;
    o->run.user = self;
    krpy_enter(c);
    KRPY_COMPUTE(c, self->trainer = kr_trainer_create(c->ctx, model, loader, &o->run));
    *self->handle = (krpy_handle){ .destroy = destroy_trainer, .object = self->trainer };
    return krpy_leave(c);
}

/* Trainer(model, loader, validation, options, files, muon_without) */
static PyObject *trainer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = { "", "", "", "", "", "", NULL };
    krpy_module *module = PyType_GetModuleState(type);
    PyObject *model, *loader, *validation, *options, *files, *without;
    run_options o;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OOO!OO:Trainer", names, module->model, &model, &loader,
                                     &validation, &PyDict_Type, &options, &files, &without) ||
        !take_run_options(options, files, without, &o))
        return NULL;
    krpy_trainer *self = krpy_alloc(type);
    if (!self) return NULL;
    self->context = (krpy_context *)Py_NewRef((PyObject *)((krpy_model *)model)->context);
    self->model = Py_NewRef(model);
    kr_loader *training;
    if (keep_loader(module, self->context, "loader", loader, &self->loader, &training) &&
        keep_loader(module, self->context, "validation", validation, &self->validation, &o.run.validation) &&
        open_trainer(self, ((krpy_model *)model)->model, training, &o))
        return (PyObject *)self;
    Py_DECREF(self);
    return NULL;
}

static int trainer_traverse(PyObject *object, visitproc visit, void *arg)
{
    krpy_trainer *self = (krpy_trainer *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->context);
    Py_VISIT(self->model);
    Py_VISIT(self->loader);
    Py_VISIT(self->validation);
    Py_VISIT(self->on_step);
    Py_VISIT(self->error);
    return 0;
}

static int trainer_clear(PyObject *object)
{
    krpy_trainer *self = (krpy_trainer *)object;
    Py_CLEAR(self->on_step);
    Py_CLEAR(self->error);
    return 0;
}

/* The trainer is destroyed before what it uses: what is discarded is destroyed in that order. */
static void trainer_dealloc(PyObject *object)
{
    krpy_trainer *self = (krpy_trainer *)object;
    PyObject_GC_UnTrack(object);
    if (self->context) krpy_discard(self->context, self->handle);
    trainer_clear(object);
    Py_CLEAR(self->validation);
    Py_CLEAR(self->loader);
    Py_CLEAR(self->model);
    Py_CLEAR(self->context);
    krpy_free(object);
}

/* ---- methods ---- */

static PyObject *trainer_resume(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    krpy_trainer *self = (krpy_trainer *)object;
    kr_status status = KR_OK;
    krpy_enter(self->context);
    KRPY_COMPUTE(self->context, status = kr_trainer_resume(self->trainer));
    return krpy_leave(self->context) && status == KR_OK ? Py_NewRef(Py_None) : NULL;
}

static PyObject *trainer_save(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    krpy_trainer *self = (krpy_trainer *)object;
    kr_status status = KR_OK;
    krpy_enter(self->context);
    KRPY_COMPUTE(self->context, status = kr_trainer_save(self->trainer));
    return krpy_leave(self->context) && status == KR_OK ? Py_NewRef(Py_None) : NULL;
}

/* True: a step was done; False: all steps are done. */
static PyObject *trainer_step(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    krpy_trainer *self = (krpy_trainer *)object;
    kr_status status = KR_OK;
    krpy_enter(self->context);
    KRPY_COMPUTE(self->context, status = kr_trainer_step(self->trainer));
    if (!krpy_leave(self->context)) return NULL;
    return PyBool_FromLong(status == KR_OK);
}

/* Raises what on_step raised. An error of the library that followed, such as that of the checkpoint, has it as its
 * context. */
static bool raise_kept(krpy_trainer *self, bool is_well)
{
    PyObject *kept = self->error;
    self->error = NULL;
    if (!kept) return is_well;
    if (is_well) {
        PyErr_SetObject((PyObject *)Py_TYPE(kept), kept);
        Py_DECREF(kept);
        return false;
    }
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    PyException_SetContext(value, kept); /* takes the reference */
    PyErr_Restore(type, value, traceback);
    return false;
}

static PyObject *trainer_run(PyObject *object, PyObject *callback)
{
    krpy_trainer *self = (krpy_trainer *)object;
    if (self->on_step) {
        krpy_raise(krpy_module_of(object), KR_ERR_STATE,
                   "trainer.run: the trainer is running; on_step must not run it");
        return NULL;
    }
    kr_status status = KR_OK;
    krpy_enter(self->context);
    self->on_step = Py_NewRef(callback);
    KRPY_COMPUTE(self->context, status = kr_trainer_run(self->trainer));
    Py_CLEAR(self->on_step);
    const bool is_well = krpy_leave(self->context);
    return raise_kept(self, is_well) && status == KR_OK ? Py_NewRef(Py_None) : NULL;
}

/* evaluate(loader, max_batches) -> (loss, scored, right) */
static PyObject *trainer_evaluate(PyObject *object, PyObject *args)
{
    krpy_trainer *self = (krpy_trainer *)object;
    krpy_module *module = krpy_module_of(object);
    PyObject *loader, *kept = NULL;
    long long most = 0;
    kr_loader *used;
    if (!PyArg_ParseTuple(args, "OL:evaluate", &loader, &most) ||
        !keep_loader(module, self->context, "loader", loader, &kept, &used))
        return NULL;
    kr_evaluation e = { 0 };
    krpy_enter(self->context);
    KRPY_COMPUTE(self->context, e = kr_trainer_evaluate(self->trainer, used, most));
    const bool is_well = krpy_leave(self->context);
    Py_XDECREF(kept);
    if (!is_well) return NULL;
    return Py_BuildValue("dLL", e.loss, (long long)e.n_scored, (long long)e.n_right);
}

static PyObject *trainer_progress(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    const kr_train_progress p = kr_trainer_progress(((krpy_trainer *)object)->trainer);
    return progress_of(&p);
}

static PyObject *trainer_describe(PyObject *object, PyObject *ignored)
{
    (void)ignored;
    krpy_trainer *self = (krpy_trainer *)object;
    krpy_enter(self->context);
    const kr_optimizer *optimizer = kr_trainer_optimizer(self->trainer);
    const size_t length = kr_optimizer_describe(optimizer, NULL, 0);
    char *text = PyMem_Malloc(length + 1);
    if (text) kr_optimizer_describe(optimizer, text, length + 1);
    if (!krpy_leave(self->context) || !text) {
        PyMem_Free(text);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    PyObject *made = PyUnicode_DecodeUTF8(text, (Py_ssize_t)length, "replace");
    PyMem_Free(text);
    return made;
}

static PyMethodDef trainer_methods[] = {
    { "resume", trainer_resume, METH_NOARGS, "resume($self, /)\n--\n\nContinues from the newest checkpoint." },
    { "run", trainer_run, METH_O, "run($self, on_step, /)\n--\n\nAll steps; on_step gets the progress as a tuple." },
    { "step", trainer_step, METH_NOARGS, "step($self, /)\n--\n\nOne step; False if all are done." },
    { "save", trainer_save, METH_NOARGS, "save($self, /)\n--\n\nSaves a checkpoint." },
    { "evaluate", trainer_evaluate, METH_VARARGS,
      "evaluate($self, loader, max_batches, /)\n--\n\n(loss, scored, right) over batches of the loader." },
    { "progress", trainer_progress, METH_NOARGS, "progress($self, /)\n--\n\nThe progress as a tuple." },
    { "describe", trainer_describe, METH_NOARGS,
      "describe($self, /)\n--\n\nA line for each parameter: which rule updates it." },
    { 0 },
};

static PyType_Slot trainer_slots[] = {
    { Py_tp_doc, "Trainer(model, loader, validation, options, files, muon_without, /)\n--\n\n"
                 "A training run; see krait.train." },
    { Py_tp_new, trainer_new },
    { Py_tp_dealloc, trainer_dealloc },
    { Py_tp_traverse, trainer_traverse },
    { Py_tp_clear, trainer_clear },
    { Py_tp_methods, trainer_methods },
    { 0, NULL },
};

PyType_Spec krpy_trainer_spec = {
    .name = "krait._core.Trainer",
    .basicsize = sizeof(krpy_trainer),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = trainer_slots,
};
