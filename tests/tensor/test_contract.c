/* test_contract.c - shape contracts: what they bind, what they refuse, and in which words. */
#include "tests/harness.h"

#include "tensor/contract.h"

static kr_ctx *ctx;
static kr_tape *t;

static void begin(void)
{
    ctx = kr_test_ctx(1, NULL);
    t = kr_tape_create(ctx, KR_TAPE_NO_GRAD);
}

static void end(void)
{
    CHECK_OK(ctx);
    kr_tape_destroy(t);
    kr_ctx_destroy(ctx);
}

#define X(...) kr_zeros(t, KR_DTYPE_F32, KR_SHAPE(__VA_ARGS__))
#define BIND(d, contract, ...) kr_contract_bind(ctx, "op", (d), (contract), (kr_tensor *[]){ __VA_ARGS__ })

TEST(reading_a_contract)
{
    char name[32];
    CHECK(kr_contract_count("x:..i z:..i gain:i?") == 3 && kr_contract_count("x:") == 1 && kr_contract_count("") == 0,
          "operands are counted");
    CHECK(kr_contract_count("  x:ab   y:b ") == 2, "spaces between operands do not count");
    CHECK(strcmp(kr_contract_name("x:..i weight:oi bias:o?", 1, name, sizeof name), "weight") == 0, "name %s", name);
    CHECK(strcmp(kr_contract_name("x:..i weight:oi bias:o?", 2, name, sizeof name), "bias") == 0, "name %s", name);
    CHECK(strcmp(kr_contract_name("weight:oi", 0, name, 4), "wei") == 0, "a name is cut to its buffer: %s", name);
    CHECK(kr_contract_is_optional("x:..i bias:o? y:a", 1) && !kr_contract_is_optional("x:..i bias:o? y:a", 0) &&
              !kr_contract_is_optional("x:..i bias:o? y:a", 2),
          "a question mark makes an operand optional");
}

TEST(binding)
{
    begin();
    kr_dims d;
    CHECK(BIND(&d, "x:bsv weight:vk bias:v? window:bvk?", X(2, 5, 3), X(3, 4), NULL, X(2, 3, 4)), "conv");
    CHECK(d.b == 2 && d.s == 5 && d.v == 3 && d.k == 4 && d.a == 0 && d.size['k' - 'a'] == 4, "sizes by letter");
    CHECK(d.lead.rank == 0 && d.rows == 1, "no leading axes");
    CHECK(BIND(&d, "x:..i gain:i", X(2, 3, 4), X(4)), "leading axes");
    CHECK(d.lead.rank == 2 && d.lead.dims[0] == 2 && d.lead.dims[1] == 3 && d.rows == 6 && d.i == 4,
          "leading axes are bound");
    CHECK(BIND(&d, "x:..i gain:i", X(4), X(4)) && d.lead.rank == 0 && d.rows == 1,
          "no leading axes where there are none");
    CHECK(BIND(&d, "x:..i", X(0, 4)) && d.rows == 0, "no rows");
    CHECK(BIND(&d, "x:..", X(7, 2)) && d.rows == 14 && d.lead.rank == 2, "leading axes alone");
    CHECK(BIND(&d, "x:..", kr_zeros(t, KR_DTYPE_F32, KR_SCALAR)) && d.rows == 1, "a single element");
    CHECK(BIND(&d, "x:b3 y:b1", X(2, 3), X(2, 1)) && d.b == 2, "sizes that are given");
    CHECK(BIND(&d, "x:aa", X(3, 3)) && d.a == 3, "a square");
    end();
}

#define REFUSED(text, ...)                                                                                             \
    do {                                                                                                               \
        kr_dims d;                                                                                                     \
        kr_tape_reset(t);                                                                                              \
        CHECK(!BIND(&d, __VA_ARGS__), "%s is not refused", #__VA_ARGS__);                                              \
        CHECK_ERROR(ctx, KR_ERR_SHAPE, (text));                                                                        \
    } while (0)

TEST(errors)
{
    begin();
    REFUSED("op: axis i of gain [96] is 96, but x [2, 64, 128] says i = 128", "x:..i z:..i gain:i", X(2, 64, 128),
            X(2, 64, 128), X(96));
    REFUSED("op: x [2, 3] has rank 2, but must have 3 (axes bsv)", "x:bsv", X(2, 3));
    REFUSED("op: x [2, 3] has rank 2, but must have 0 (axes )", "x:", X(2, 3));
    REFUSED("op: x [3] has rank 1, but must have at least 2 (axes ..mk)", "x:..mk", X(3));
    REFUSED("op: leading axes of z [3, 8] are [3], but x [2, 8] has [2]", "x:..i z:..i", X(2, 8), X(3, 8));
    REFUSED("op: leading axes of z [8] are [], but x [2, 8] has [2]", "x:..i z:..i", X(2, 8), X(8));
    REFUSED("op: axis 1 of x [2, 4] is 4, but must be 3", "x:b3", X(2, 4));
    REFUSED("op: axis a of x [3, 4] is 4, but x [3, 4] says a = 3", "x:aa", X(3, 4));
    REFUSED("op: axis k of c [5] is 5, but a [4] says k = 4", "a:k b:k? c:k", X(4), NULL, X(5));
    end();
}
