/* krait.hpp - the C++17 interface: RAII handles, exceptions for errors, spans over host memory.
 *
 *   krait::context ctx;                                          // all cores, the best instruction set
 *   kr_mamba3_config config;
 *   kr_mamba3_config_init(&config);
 *   config.d_model = 256;
 *   krait::block block(ctx, config);
 *   krait::tape tape(ctx, KR_TAPE_NO_GRAD);
 *   krait::tensor x = tape.randn({ 2, 64, 256 });
 *   kr_block_out out = block.forward(tape, x);                   // throws krait::error
 *   std::vector<float> y = krait::tensor(out.y).read<float>();
 *
 * Header-only, over the C interface, which may be mixed in at any point: every handle converts to its C pointer. A handle
 * owns its object and can be moved, not copied. Destroy objects before their context: C++ does so for locals in reverse
 * order of declaration. Calls that fail throw krait::error with the context's status and message, and clear the context's
 * error, so that the program can continue after a catch; a tape on which the error happened must be reset.
 */
#ifndef KRAIT_KRAIT_HPP
#define KRAIT_KRAIT_HPP

#include <krait/krait.h>

#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace krait
{

/* The first error of a context: what() is the message, status() the status code. */
class error : public std::runtime_error
{
  public:
    error(kr_status status, const std::string &message) : std::runtime_error(message), status_(status) {}
    kr_status status() const noexcept { return status_; }

  private:
    kr_status status_;
};

/* A pointer and a length: the elements of a vector, an array or any contiguous memory. */
template <typename T> class span
{
  public:
    span(T *data, size_t count) noexcept : data_(data), count_(count) {}
    template <size_t N> span(T (&array)[N]) noexcept : data_(array), count_(N) {}
    template <typename U> span(const std::vector<U> &v) noexcept : data_(v.data()), count_(v.size()) {}
    template <typename U> span(std::vector<U> &v) noexcept : data_(v.data()), count_(v.size()) {}
    T *data() const noexcept { return data_; }
    size_t size() const noexcept { return count_; }
    T *begin() const noexcept { return data_; }
    T *end() const noexcept { return data_ + count_; }
    T &operator[](size_t i) const noexcept { return data_[i]; }

  private:
    T *data_;
    size_t count_;
};

/* The element type of a C++ type. */
template <typename T> struct dtype_of;
template <> struct dtype_of<float> {
    static constexpr kr_dtype value = KR_DTYPE_F32;
};
template <> struct dtype_of<double> {
    static constexpr kr_dtype value = KR_DTYPE_F64;
};
template <> struct dtype_of<int32_t> {
    static constexpr kr_dtype value = KR_DTYPE_I32;
};
template <> struct dtype_of<int64_t> {
    static constexpr kr_dtype value = KR_DTYPE_I64;
};

/* Throws the context's error, if it has one, and clears it. */
inline void check(kr_ctx *ctx)
{
    if (!kr_ctx_failed(ctx)) return;
    const error e(kr_ctx_status(ctx), kr_ctx_message(ctx));
    kr_ctx_clear(ctx);
    throw e;
}

/* The same after a call that returned a status; KR_END is not an error. */
inline kr_status check(kr_ctx *ctx, kr_status status)
{
    if (status != KR_OK && status != KR_END) {
        check(ctx);
        throw error(status, kr_status_name(status));
    }
    return status;
}

/* The same after a call that returned a pointer. */
template <typename T> T *check(kr_ctx *ctx, T *result)
{
    check(ctx);
    if (!result) throw error(KR_ERR_ARG, "the call returned NULL without an error; is an argument NULL?");
    return result;
}

inline kr_shape shape(std::initializer_list<int64_t> dims)
{
    if (dims.size() > KR_MAX_RANK) throw error(KR_ERR_SHAPE, "a shape has at most KR_MAX_RANK axes");
    kr_shape s = {};
    for (int64_t dim : dims) s.dims[s.rank++] = dim;
    return s;
}

namespace detail
{
template <typename T, void (*destroy)(T *)> struct deleter {
    void operator()(T *object) const noexcept { destroy(object); }
};
} // namespace detail

/* An owned C object. */
template <typename T, void (*destroy)(T *)> class handle
{
  public:
    handle() = default;
    explicit handle(T *object) noexcept : object_(object) {}
    T *get() const noexcept { return object_.get(); }
    operator T *() const noexcept { return object_.get(); }
    explicit operator bool() const noexcept { return object_ != nullptr; }

  private:
    std::unique_ptr<T, detail::deleter<T, destroy>> object_;
};

/* Device, threads, memory and random stream; see ctx.h. */
class context : public handle<kr_ctx, kr_ctx_destroy>
{
  public:
    explicit context(const kr_ctx_options *options = nullptr) : handle(kr_ctx_create(options))
    {
        if (!get()) throw error(KR_ERR_NOMEM, "ctx: out of memory");
        if (kr_ctx_failed(get())) throw error(kr_ctx_status(get()), kr_ctx_message(get()));
    }
    std::string device() const { return kr_ctx_device(get()); }
    void seed(uint64_t value) { kr_ctx_seed(get(), value); }
    void wait() { check(get(), kr_ctx_wait(get())); }
};

/* A borrowed tensor: it belongs to its tape or parameter table. */
class tensor
{
  public:
    tensor(kr_tensor *x = nullptr) noexcept : x_(x) {}
    operator kr_tensor *() const noexcept { return x_; }
    kr_tensor *get() const noexcept { return x_; }
    int rank() const noexcept { return kr_tensor_rank(x_); }
    int64_t dim(int axis) const noexcept { return kr_tensor_dim(x_, axis); }
    int64_t count() const noexcept { return kr_tensor_count(x_); }
    tensor grad() const noexcept { return kr_grad(x_); }
    double item() const { return kr_item(x_); }
    /* The elements in row-major order, converted to T. */
    template <typename T> std::vector<T> read() const
    {
        std::vector<T> values((size_t)count());
        const kr_status status = kr_tensor_read(x_, dtype_of<T>::value, values.data(), count());
        if (status != KR_OK) throw error(status, "tensor.read failed");
        return values;
    }

  private:
    kr_tensor *x_;
};

/* Owns the tensors of one step; see tape.h. */
class tape : public handle<kr_tape, kr_tape_destroy>
{
  public:
    explicit tape(kr_ctx *ctx, kr_tape_mode mode = KR_TAPE_GRAD)
        : handle(check(ctx, kr_tape_create(ctx, mode))), ctx_(ctx)
    {
    }
    kr_ctx *ctx() const noexcept { return ctx_; }
    void reset() { kr_tape_reset(get()); }
    tensor randn(std::initializer_list<int64_t> dims, kr_dtype dtype = KR_DTYPE_F32)
    {
        return check(ctx_, kr_randn(get(), dtype, shape(dims)));
    }
    /* A copy of host memory. */
    template <typename T> tensor from(span<const T> data, std::initializer_list<int64_t> dims)
    {
        const kr_shape s = shape(dims);
        int64_t count = 1;
        for (int i = 0; i < s.rank; i++) count *= s.dims[i];
        if (count != (int64_t)data.size())
            throw error(KR_ERR_SHAPE, "tape.from: " + std::to_string(data.size()) + " elements, but the shape has " +
                                          std::to_string(count));
        return check(ctx_, kr_from_data(get(), dtype_of<T>::value, s, data.data()));
    }
    template <typename T> tensor from(const std::vector<T> &data, std::initializer_list<int64_t> dims)
    {
        return from(span<const T>(data), dims);
    }
    /* The result of an op, or an exception: tape(kr_add(tape, a, b)). */
    tensor operator()(kr_tensor *result) { return check(ctx_, result); }
    void backward(kr_tensor *loss) { check(ctx_, kr_backward(get(), loss)); }

  private:
    kr_ctx *ctx_;
};

/* A block of any family; see block.h. */
class block : public handle<kr_block, kr_block_destroy>
{
  public:
    block(kr_ctx *ctx, const kr_block_config &config) : handle(check(ctx, kr_block_create(ctx, &config))) {}
    block(kr_ctx *ctx, const kr_mamba1_config &config) : block(ctx, kr_mamba1_block(&config)) {}
    block(kr_ctx *ctx, const kr_mamba2_config &config) : block(ctx, kr_mamba2_block(&config)) {}
    block(kr_ctx *ctx, const kr_mamba3_config &config) : block(ctx, kr_mamba3_block(&config)) {}
    kr_params *params() const noexcept { return kr_block_params(get()); }
    kr_block_out forward(tape &t, kr_tensor *x_bsd, const kr_block_call *call = nullptr) const
    {
        const kr_block_out out = kr_block_forward(t, get(), x_bsd, call);
        check(t.ctx());
        return out;
    }
    kr_block_out step(tape &t, kr_tensor *x_bd, const kr_cache *cache = nullptr) const
    {
        const kr_block_out out = kr_block_step(t, get(), x_bd, cache);
        check(t.ctx());
        return out;
    }
};

/* Embedding, layers and LM head, or projections around layers; see network.h. */
class network : public handle<kr_network, kr_network_destroy>
{
  public:
    network(kr_ctx *ctx, const kr_network_config &config)
        : handle(check(ctx, kr_network_create(ctx, &config))), ctx_(ctx)
    {
    }
    kr_ctx *ctx() const noexcept { return ctx_; }
    kr_params *params() const noexcept { return kr_network_params(get()); }
    const kr_layers *layers() const noexcept { return kr_network_layers(get()); }
    /* Logits or features [b s ..] of a sequence: ids [b s], or features [b s f]. */
    kr_network_out forward(tape &t, kr_tensor *x, const kr_call *call = nullptr) const
    {
        const kr_network_out out = kr_network_forward(t, get(), x, call);
        check(t.ctx());
        return out;
    }
    /* The same for one token: ids [b], or features [b f]. */
    kr_network_out step(tape &t, kr_tensor *x, const kr_call *call = nullptr) const
    {
        const kr_network_out out = kr_network_step(t, get(), x, call);
        check(t.ctx());
        return out;
    }
    /* Creates a network of another context over the same weights; from any thread. */
    network share(kr_ctx *ctx) const { return network(ctx, check(ctx, kr_network_share(ctx, get()))); }

  private:
    network(kr_ctx *ctx, kr_network *net) noexcept : handle(net), ctx_(ctx) {}
    kr_ctx *ctx_;
};

/* The recurrent state of a network, for kr_call.state; see network.h. */
class state : public handle<kr_state, kr_state_destroy>
{
  public:
    /* Creates an initial state for `rows` sequences. */
    state(kr_ctx *ctx, const kr_layers *layers, int64_t rows)
        : handle(check(ctx, kr_state_create(ctx, layers, rows))), ctx_(ctx)
    {
    }
    /* Loads a file saved with the same network. */
    state(kr_ctx *ctx, const kr_network *net, const std::string &path)
        : handle(check(ctx, kr_state_load(ctx, net, path.c_str()))), ctx_(ctx)
    {
    }
    /* Copies a state returned by a call, before its tape is reset. */
    void copy(const kr_state *from) { check(ctx_, kr_state_copy(get(), from)); }
    void save(const kr_network *net, const std::string &path) const
    {
        check(ctx_, kr_state_save(get(), net, path.c_str()));
    }
    size_t bytes() const noexcept { return kr_state_bytes(get()); }

  private:
    kr_ctx *ctx_;
};

/* A model on disk; see model.h. */
class model : public handle<kr_model, kr_model_destroy>
{
  public:
    model(kr_ctx *ctx, const std::string &folder, const kr_load_options *options = nullptr)
        : handle(check(ctx, kr_model_load(ctx, folder.c_str(), options))), ctx_(ctx)
    {
    }
    model(kr_ctx *ctx, const kr_model_config &config) : handle(check(ctx, kr_model_create(ctx, &config))), ctx_(ctx) {}
    const kr_network *network() const noexcept { return kr_model_network(get()); }
    void save(const std::string &folder, const kr_save_options *options = nullptr) const
    {
        check(ctx_, kr_model_save(get(), folder.c_str(), options));
    }
    /* Creates a model of another context over the same weights; from any thread. */
    model share(kr_ctx *ctx) const { return model(ctx, check(ctx, kr_model_share(ctx, get()))); }

  private:
    model(kr_ctx *ctx, kr_model *shared) noexcept : handle(shared), ctx_(ctx) {}
    kr_ctx *ctx_;
};

/* Text to ids and back; see text.h. */
class tokenizer : public handle<kr_tokenizer, kr_tokenizer_destroy>
{
  public:
    /* One token for each byte. */
    explicit tokenizer(kr_ctx *ctx) : handle(check(ctx, kr_tokenizer_bytes(ctx))), ctx_(ctx) {}
    /* From a tokenizer.json. */
    tokenizer(kr_ctx *ctx, const std::string &path)
        : handle(check(ctx, kr_tokenizer_load(ctx, path.c_str()))), ctx_(ctx)
    {
    }
    std::vector<int32_t> encode(std::string_view text, const kr_encode_options *options = nullptr) const
    {
        std::vector<int32_t> ids((size_t)kr_tokenizer_max_ids(get(), text.size()));
        const int64_t count =
            kr_tokenizer_encode(get(), text.data(), text.size(), options, ids.data(), (int64_t)ids.size());
        check(ctx_);
        ids.resize(count > 0 ? (size_t)count : 0);
        return ids;
    }
    /* Creates a tokenizer of another context over the same tables; from any thread. */
    tokenizer share(kr_ctx *ctx) const { return tokenizer(ctx, check(ctx, kr_tokenizer_share(ctx, get()))); }

  private:
    tokenizer(kr_ctx *ctx, kr_tokenizer *tok) noexcept : handle(tok), ctx_(ctx) {}
    kr_ctx *ctx_;
};

/* A prompt and its continuation; see generate.h. */
class generation : public handle<kr_generation, kr_generation_destroy>
{
  public:
    generation(kr_ctx *ctx, const kr_network *net, const kr_tokenizer *tok,
               const kr_generate_options *options = nullptr)
        : handle(check(ctx, kr_generation_create(ctx, net, tok, options))), ctx_(ctx)
    {
    }
    void feed(std::string_view text) { check(ctx_, kr_generation_feed_text(get(), text.data(), text.size())); }
    void feed(span<const int32_t> ids) { check(ctx_, kr_generation_feed(get(), ids.data(), (int64_t)ids.size())); }
    /* False when all rows have finished. */
    bool next() { return check(ctx_, kr_generation_next(get())) == KR_OK; }
    const kr_generated &row(int64_t i) const
    {
        const kr_generated *generated = kr_generation_row(get(), i);
        if (!generated) throw error(KR_ERR_ARG, "generation.row: there is no row " + std::to_string(i));
        return *generated;
    }
    std::string_view text(int64_t i = 0) const
    {
        const kr_generated &generated = row(i);
        return std::string_view(generated.text, generated.bytes);
    }

  private:
    kr_ctx *ctx_;
};

/* A language model with its tokenizer; see generate.h. */
class text_model : public handle<kr_text_model, kr_text_model_destroy>
{
  public:
    text_model(kr_ctx *ctx, const std::string &folder, const kr_text_model_options *options = nullptr)
        : handle(check(ctx, kr_text_model_open(ctx, folder.c_str(), options))), ctx_(ctx)
    {
    }
    kr_model *model() const noexcept { return kr_text_model_model(get()); }
    const kr_network *network() const noexcept { return kr_model_network(model()); }
    const kr_tokenizer *tokenizer() const noexcept { return kr_text_model_tokenizer(get()); }
    /* Creates a generation and feeds it `prompt`. It ends at EOS, unless the options have other stop ids. */
    krait::generation generate(std::string_view prompt, const kr_generate_options *options = nullptr) const
    {
        kr_generate_options o;
        kr_generate_options_init(&o);
        if (options) o = *options;
        if (!o.n_stop_ids) kr_text_model_set_stops(get(), &o);
        krait::generation generation(ctx_, network(), tokenizer(), &o);
        check(ctx_, kr_text_model_feed(get(), generation, prompt.data(), prompt.size()));
        return generation;
    }
    /* Creates a text model of another context over the same weights and tokenizer; from any thread. */
    text_model share(kr_ctx *ctx) const { return text_model(ctx, check(ctx, kr_text_model_share(ctx, get()))); }

  private:
    text_model(kr_ctx *ctx, kr_text_model *lm) noexcept : handle(lm), ctx_(ctx) {}
    kr_ctx *ctx_;
};

} // namespace krait

#endif
