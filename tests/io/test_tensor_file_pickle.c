/* test_tensor_file_pickle.c - torch files whose pickles are put together here: every instruction that is taken, every way to
 * be refused, and the limits. */
#include "tests/io/torch_image.h"

#include <time.h>

/* x [2 3] with the values 1 to 6, and nothing else. */
static void check_six(kr_ctx *ctx, image m, const char *what)
{
    kr_tensor_file *w = kr_tensor_file_open_memory(ctx, m.bytes, m.count);
    if (!CHECK(w != NULL, "%s: %s", what, kr_ctx_message(ctx))) kr_ctx_clear(ctx);
    float values[6] = { 0 };
    const kr_tensor_file_item *x = kr_tensor_file_find(w, "x");
    CHECK(kr_tensor_file_count(w) == 1 && x && x->shape.rank == 2 && x->shape.dims[0] == 2 && x->shape.dims[1] == 3 &&
              strcmp(x->type, "FloatStorage") == 0 && x->dtype == KR_DTYPE_F32 && x->count == 6 && x->bytes == 24,
          "%s: the tensor", what);
    if (x) IGNORE(kr_tensor_file_read(w, x, KR_DTYPE_F32, values, 6));
    CHECK(memcmp(values, six, sizeof six) == 0, "%s: its values", what);
    kr_tensor_file_close(w);
    free(m.bytes);
}

static void check_refused(kr_ctx *ctx, image m, const char *part)
{
    const size_t blocks = kr_ctx_memory(ctx).live_blocks;
    CHECK(!kr_tensor_file_open_memory(ctx, m.bytes, m.count), "not refused: %s", part);
    CHECK(strncmp(kr_ctx_message(ctx), "tensor_file: ", 9) == 0, "%s", kr_ctx_message(ctx));
    CHECK_ERROR_HAS(ctx, KR_ERR_FORMAT, part);
    CHECK(kr_ctx_memory(ctx).live_blocks == blocks, "memory is left: %s", part);
    free(m.bytes);
}

#define X TEXT("\1", "x")
#define TWO_THREE INT("\2") INT("\3") "\x86"
#define THREE_ONE INT("\3") INT("\1") "\x86"
#define FLAT(sizes, strides) TENSOR_OF(SIX, "\0", sizes, strides)
#define PARAMETER "ctorch._utils\n_rebuild_parameter\n"
#define METADATA "}" TEXT("\x9", "_metadata")

TEST(pickle_instructions_taken)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
#define TAKEN(program) check_six(ctx, TORCH(program), #program)
    TAKEN(BEGIN "}" X TENSOR "s.");
    TAKEN(BEGIN "}(" X TENSOR "u.");
    TAKEN(BEGIN "}(u" X TENSOR "s.");
    TAKEN(BEGIN NO_HOOKS X TENSOR "s.");
    /* protocols, frames */
    TAKEN("\x80\3}" X TENSOR "s.");
    TAKEN("\x80\4}" X TENSOR "s.");
    TAKEN("\x80\5\x95\2\0\0\0\0\0\0\0}" X TENSOR "s.");
    /* texts */
    TAKEN("\x80\4}\x8c\1x" TENSOR "s.");
    TAKEN("\x80\4}\x8d\1\0\0\0\0\0\0\0x" TENSOR "s.");
    /* integers: BININT, BININT2, LONG1 of 1, 8 and no bytes, LONG4 */
    TAKEN(BEGIN "}" X FLAT("J\2\0\0\0M\3\0\x86", "\x8a\1\3\x8a\x8\1\0\0\0\0\0\0\0\x86") "s.");
    TAKEN(BEGIN "}" X REBUILD "(" SIX "\x8a\0\x8b\1\0\0\0\2" INT("\3") "\x86" THREE_ONE "\x89" NO_HOOKS "tRs.");
    /* tuples: by mark, of one, two, three */
    TAKEN(BEGIN "}" X FLAT("(" INT("\2") INT("\3") "t", THREE_ONE) "s.");
    TAKEN(BEGIN "}" X PARAMETER TENSOR "\x88" NO_HOOKS "\x87Rs.");
    TAKEN(BEGIN "}" X PARAMETER "(" TENSOR "\x89" NO_HOOKS "tRs.");
    TAKEN(BEGIN NO_HOOKS X TENSOR "s" METADATA INT("\1") "\x85sb.");
    /* names from the stack */
    TAKEN("\x80\4}\x8c\1x\x8c\x0ctorch._utils\x8c\x12_rebuild_tensor_v2\x93(" SIX INT("\0") TWO_THREE THREE_ONE
          "\x89\x8c\x0b"
          "collections\x8c\x0bOrderedDict\x93)RtRs.");
    /* the memo: BINPUT, LONG_BINPUT, MEMOIZE; a place that is written over, and one far off */
    TAKEN(BEGIN "}" X FLAT(INT("\2") INT("\3") "q\0\x86", "h\0" INT("\1") "\x86") "s.");
    TAKEN(BEGIN "}" X FLAT(INT("\2") INT("\3") "r\1\0\0\0\x86", "j\1\0\0\0" INT("\1") "\x86") "s.");
    TAKEN("\x80\4}" X FLAT(INT("\2") "\x94" INT("\3") "\x94\x86", "h\1" INT("\1") "\x86") "s.");
    TAKEN(BEGIN "}" X FLAT(INT("\2") "q\1" INT("\3") "q\1\x86", "h\1" INT("\1") "\x86") "s.");
    TAKEN(BEGIN "}" X FLAT(INT("\2") INT("\3") "q\x50\x86", "h\x50" INT("\1") "\x86") "s.");
    TAKEN("\x80\4}" X FLAT(INT("\2") "q\7" INT("\3") "\x94\x86", "h\1" INT("\1") "\x86") "s.");
    /* metadata of tensors and dictionaries */
    TAKEN(BEGIN "}" X REBUILD "(" SIX INT("\0") TWO_THREE THREE_ONE "\x88" NO_HOOKS "NtRs.");
    TAKEN(BEGIN "}" X REBUILD "(" SIX INT("\0") TWO_THREE THREE_ONE "\x89" NO_HOOKS "}tRs.");
    TAKEN(BEGIN NO_HOOKS "(" X TENSOR "u" METADATA NO_HOOKS "(" TEXT("\0", "") "}" TEXT("\7", "version")
              INT("\1") "susb.");
    TAKEN(BEGIN NO_HOOKS X TENSOR "s}b.");
    /* a dictionary around it, with other things */
    TAKEN(BEGIN "}(" TEXT("\xa", "state_dict") "}" X TENSOR "s" TEXT("\5", "epoch") INT("\3")
              TEXT("\4", "loss") "G12345678" TEXT("\4", "none") "N" TEXT("\4", "best") "\x88" TEXT("\4", "name")
                  X TEXT("\4", "size") ")u.");
    TAKEN(BEGIN "}" TEXT("\5", "model") NO_HOOKS X TENSOR "s" METADATA "Nsbs.");
#undef TAKEN
    kr_ctx_destroy(ctx);
}

/* A tensor may be called as the wrapper is. */
TEST(pickle_tensor_named_model)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    image m = TORCH(BEGIN "}(" TEXT("\5", "model") TENSOR X TENSOR TEXT("\0", "") TENSOR "u.");
    kr_tensor_file *w = kr_tensor_file_open_memory(ctx, m.bytes, m.count);
    CHECK_OK(ctx);
    CHECK(kr_tensor_file_count(w) == 3 && kr_tensor_file_find(w, "model") && kr_tensor_file_find(w, "x") &&
              kr_tensor_file_find(w, ""),
          "three tied tensors");
    CHECK(kr_tensor_file_at(w, 0) == kr_tensor_file_find(w, ""), "at one place, by their names");
    kr_tensor_file_close(w);
    free(m.bytes);
    m = TORCH(BEGIN "}.");
    w = kr_tensor_file_open_memory(ctx, m.bytes, m.count);
    CHECK_OK(ctx);
    CHECK(w && kr_tensor_file_count(w) == 0, "none");
    kr_tensor_file_close(w);
    free(m.bytes);
    kr_ctx_destroy(ctx);
}

#define REFUSED(program, part) check_refused(ctx, TORCH(program), (part))

TEST(pickle_asks_for_other_things)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    image m = TORCH(BEGIN "cos\nsystem\n" TEXT("\2", "ls") "\x85R.");
    CHECK(!kr_tensor_file_open_memory(ctx, m.bytes, m.count), "os.system");
    CHECK_ERROR(ctx, KR_ERR_FORMAT,
                "tensor_file: the pickle at byte 2: it asks for os.system, which is neither a tensor nor a dictionary");
    free(m.bytes);
    REFUSED("\x80\4\x8c\2os\x8c\6system\x93.", "it asks for os.system, which is neither a tensor nor a dictionary");
    REFUSED(BEGIN "c__builtin__\neval\n.", "it asks for __builtin__.eval, which");
    REFUSED(BEGIN "ccollections\nCounter\n.", "it asks for collections.Counter, which");
    REFUSED(BEGIN "ctorch\nOrderedDict\n.", "it asks for torch.OrderedDict, which");
    REFUSED(BEGIN "ctorch\nComplexFloatStorage\n.", "it asks for torch.ComplexFloatStorage, which");
    REFUSED(BEGIN "ctorch._utils\nFloatStorage\n.", "it asks for torch._utils.FloatStorage, which");
    REFUSED(BEGIN "ctorch._utils\n_rebuild_tensor_v3\n.", "it asks for torch._utils._rebuild_tensor_v3, which");
    REFUSED(BEGIN "c\n\n.", "it asks for ., which");
    REFUSED(BEGIN "ctorch\0x\nFloatStorage\n.", "it asks for torch?x.FloatStorage, which");
    REFUSED(BEGIN "cos\nsystem", "the program ends inside a name");
    REFUSED(BEGIN "cos", "the program ends inside a name");
    REFUSED(BEGIN X INT("\1") "\x93.", "a global's name is not text");
    REFUSED(BEGIN X "\x93.", "the stack has 1 values, but 2 are needed");
    kr_ctx_destroy(ctx);
}

TEST(pickle_instructions_refused)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    static const struct {
        unsigned char code;
        const char *name;
    } rows[] = { { 'B', "BINBYTES" },
                 { 'C', "SHORT_BINBYTES" },
                 { 'F', "FLOAT" },
                 { 'I', "INT" },
                 { 'L', "LONG" },
                 { 'P', "PERSID" },
                 { 'S', "STRING" },
                 { 'T', "BINSTRING" },
                 { 'U', "SHORT_BINSTRING" },
                 { 'V', "UNICODE" },
                 { ']', "EMPTY_LIST" },
                 { '0', "POP" },
                 { '1', "POP_MARK" },
                 { '2', "DUP" },
                 { 'a', "APPEND" },
                 { 'd', "DICT" },
                 { 'e', "APPENDS" },
                 { 'g', "GET" },
                 { 'i', "INST" },
                 { 'l', "LIST" },
                 { 'o', "OBJ" },
                 { 'p', "PUT" },
                 { 0x80, "PROTO" },
                 { 0x81, "NEWOBJ" },
                 { 0x82, "EXT1" },
                 { 0x83, "EXT2" },
                 { 0x84, "EXT4" },
                 { 0x8e, "BINBYTES8" },
                 { 0x8f, "EMPTY_SET" },
                 { 0x90, "ADDITEMS" },
                 { 0x91, "FROZENSET" },
                 { 0x92, "NEWOBJ_EX" },
                 { 0x96, "BYTEARRAY8" },
                 { 0x97, "NEXT_BUFFER" },
                 { 0x98, "READONLY_BUFFER" } };
    bool is_known[256] = { false };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const unsigned char program[] = { 0x80, 2, rows[i].code, '.' };
        char part[120];
        snprintf(
            part, sizeof part,
            "tensor_file: the pickle at byte 2: the instruction %s creates neither tensors nor dictionaries of them",
            rows[i].name);
        check_refused(ctx, make_torch(program, sizeof program), part);
        is_known[rows[i].code] = true;
    }
    static const unsigned char taken[] = "()}GJKMNQRXbchjqrstu.\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x93\x94\x95";
    for (size_t i = 0; i < sizeof taken - 1; i++) is_known[taken[i]] = true;
    for (int code = 0; code < 256; code++) {
        if (is_known[code]) continue;
        const unsigned char program[] = { 0x80, 2, (unsigned char)code, '.' };
        char part[80];
        snprintf(part, sizeof part, "tensor_file: the pickle at byte 2: 0x%02x is not an instruction", code);
        check_refused(ctx, make_torch(program, sizeof program), part);
    }
    kr_ctx_destroy(ctx);
}

TEST(pickle_programs_refused)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    /* begin and end */
    REFUSED("", "the pickle does not begin with a protocol from 2 to 5");
    REFUSED("\x80", "the pickle does not begin with a protocol from 2 to 5");
    REFUSED("\x80\1}.", "the pickle does not begin with a protocol from 2 to 5");
    REFUSED("\x80\6}.", "the pickle does not begin with a protocol from 2 to 5");
    REFUSED("}.", "the pickle does not begin with a protocol from 2 to 5");
    REFUSED(BEGIN "}", "the pickle at its end: the program ends inside an instruction");
    REFUSED(BEGIN "}.}", "the pickle stops at byte 3, but has 5");
    REFUSED(BEGIN ".", "the pickle leaves 0 values and 0 marks, but must leave one value");
    REFUSED(BEGIN "}}.", "the pickle leaves 2 values and 0 marks, but must leave one value");
    REFUSED(BEGIN "}(.", "the pickle leaves 1 values and 1 marks, but must leave one value");
    /* the stack */
    REFUSED(BEGIN "t.", "the pickle at byte 2: there is no mark on the stack");
    REFUSED(BEGIN "u.", "there is no mark on the stack");
    REFUSED(BEGIN "(u.", "the stack is empty");
    REFUSED(BEGIN "N(u.", "put into None, which is not a dictionary");
    REFUSED(BEGIN "q\0.", "the stack is empty");
    REFUSED(BEGIN "}(q\0.", "the stack is empty");
    REFUSED(BEGIN "}(\x85.", "the stack has 0 values, but 1 are needed");
    REFUSED(BEGIN "N\x86.", "the stack has 1 values, but 2 are needed");
    REFUSED(BEGIN "NN\x87.", "the stack has 2 values, but 3 are needed");
    REFUSED(BEGIN "R.", "the stack has 0 values, but 2 are needed");
    REFUSED(BEGIN "b.", "the stack has 0 values, but 1 are needed");
    REFUSED(BEGIN "}b.", "the stack is empty");
    REFUSED(BEGIN "Q.", "the stack has 0 values, but 1 are needed");
    REFUSED(BEGIN "NNs.", "the stack is empty");
    /* arguments that are cut off */
    REFUSED(BEGIN "J\0\0\0", "the program ends inside an instruction");
    REFUSED(BEGIN "K", "the program ends inside an instruction");
    REFUSED(BEGIN "M\0", "the program ends inside an instruction");
    REFUSED(BEGIN "G1234567", "the program ends inside an instruction");
    REFUSED(BEGIN "X\2\0\0\0a", "the program ends inside an instruction");
    REFUSED(BEGIN "X\xff\xff\xff\xff"
                  "a",
            "the program ends inside an instruction");
    REFUSED(BEGIN "\x8c\2a", "the program ends inside an instruction");
    REFUSED(BEGIN "\x8d\xff\xff\xff\xff\xff\xff\xff\xff"
                  "a",
            "the program ends inside an instruction");
    REFUSED(BEGIN "\x8a\2a", "the program ends inside an instruction");
    REFUSED(BEGIN "\x8a\x9"
                  "123456789.",
            "an integer of 9 bytes is too large");
    REFUSED(BEGIN "\x8b\0\0\0\x80.", "an integer of 2147483648 bytes is too large");
    REFUSED(BEGIN "\x95\2\0\0\0\0\0\0\0}", "a frame of 2 bytes reaches beyond the program");
    REFUSED(BEGIN TEXT("\2", "\xc3("), "a text is not UTF-8");
    /* the memo */
    REFUSED(BEGIN "h\0.", "slot 0 of the memo is empty");
    REFUSED(BEGIN "Nq\1h\0.", "slot 0 of the memo is empty");
    REFUSED(BEGIN "j\xff\xff\xff\xff.", "slot 4294967295 of the memo is empty");
    REFUSED(BEGIN "Nr\x9\0\0\0.", "slot 9 of the memo exceeds a program of 9 bytes");
    REFUSED(BEGIN "Nr\xff\xff\xff\xff.", "slot 4294967295 of the memo exceeds a program of 9 bytes");
    kr_ctx_destroy(ctx);
}

TEST(pickle_objects_refused)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    /* dictionaries */
    REFUSED(BEGIN "}(Nu.", "a dictionary's last key has no value");
    REFUSED(BEGIN "}" INT("\1") TENSOR "s.", "a dictionary's key is an integer, but must be a text");
    REFUSED(BEGIN "}(" X TENSOR "}Nu.", "a dictionary's key is a dictionary, but must be a text");
    REFUSED(BEGIN ")" X TENSOR "s.", "a key and its value are put into a tuple, which is not a dictionary");
    REFUSED(BEGIN "ccollections\nOrderedDict\n)\x85R.", "an OrderedDict is made of 1 arguments, not 0");
    REFUSED(BEGIN "}" METADATA "Nsb.", "attributes are set on a dictionary, but only an OrderedDict may have them");
    REFUSED(BEGIN NO_HOOKS "Nb.", "attributes are set on a dictionary, but only an OrderedDict may have them");
    REFUSED(BEGIN NO_HOOKS "}" X "Nsb.",
            "the attribute 'x' is set on an OrderedDict, but _metadata is all that it may");
    REFUSED(BEGIN NO_HOOKS METADATA "Ns" X "Nsb.", "the attribute '_metadata' is set on an OrderedDict, but");
    /* calls */
    REFUSED(BEGIN "})R.", "a dictionary is called with a tuple");
    REFUSED(BEGIN REBUILD "}R.", "a function is called with a dictionary");
    REFUSED(BEGIN "ctorch\nFloatStorage\n)R.", "a storage's type is called with a tuple");
    /* storages */
    static const char id[] = "a persistent id is not ('storage', type, key, location, count)";
    REFUSED(BEGIN X "Q.", id);
    REFUSED(BEGIN ")Q.", id);
    REFUSED(BEGIN "(" TEXT("\7", "storagf") "ctorch\nFloatStorage\n" X X INT("\1") "tQ.", id);
    REFUSED(BEGIN "(" TEXT("\6", "storag") "ctorch\nFloatStorage\n" X X INT("\1") "tQ.", id);
    REFUSED(BEGIN "(NctorchQ\nFloatStorage\n" X X INT("\1") "tQ.", "it asks for torchQ.FloatStorage");
    REFUSED(BEGIN "(Nctorch\nFloatStorage\n" X X INT("\1") "tQ.", id);
    REFUSED(BEGIN "(" TEXT("\7", "storage") X X X INT("\1") "tQ.", id);
    REFUSED(BEGIN "(" TEXT("\7", "storage") "ctorch\nFloatStorage\nN" X INT("\1") "tQ.", id);
    REFUSED(BEGIN "(" TEXT("\7", "storage") "ctorch\nFloatStorage\n" X "N" INT("\1") "tQ.", id);
    REFUSED(BEGIN "(" TEXT("\7", "storage") "ctorch\nFloatStorage\n" X X "\x88tQ.", id);
    REFUSED(BEGIN "(" TEXT("\7", "storage") "ctorch\nFloatStorage\n" X X "J\xff\xff\xff\xfftQ.", id);
    REFUSED(BEGIN "(" TEXT("\7", "storage") "ctorch\nFloatStorage\n" X X INT("\1") "NtQ.", id);
    /* the result */
    REFUSED(BEGIN "N.", "tensor_file: the file holds None, but must hold a dictionary of tensors");
    REFUSED(BEGIN TENSOR ".", "the file holds a tensor, but must hold a dictionary of tensors");
    REFUSED(BEGIN SIX ".", "the file holds a storage, but must hold a dictionary of tensors");
    REFUSED(BEGIN REBUILD ".", "the file holds a function, but must hold a dictionary of tensors");
    REFUSED(BEGIN "ctorch\nByteStorage\n.", "the file holds a storage's type, but must hold");
    REFUSED(BEGIN "}" X INT("\1") "s.", "'x' is an integer, but only tensors are accepted");
    REFUSED(BEGIN "}" X "\x89s.", "'x' is a bool, but only tensors are accepted");
    REFUSED(BEGIN "}" X "G12345678s.", "'x' is a float, but only tensors are accepted");
    REFUSED(BEGIN "}" X X "s.", "'x' is a text, but only tensors are accepted");
    REFUSED(BEGIN "}" X "}" X TENSOR "ss.", "'x' is a dictionary, but only tensors are accepted");
    REFUSED(BEGIN "}q\0" X "h\0s.", "'x' is a dictionary, but only tensors are accepted"); /* itself */
    REFUSED(BEGIN "}q\0" TEXT("\5", "model") "h\0s.", "'model' is a dictionary, but only tensors are accepted");
    REFUSED(BEGIN "}" TEXT("\3", "a\0b") TENSOR "s.", "the name of tensor 'a?b' holds a zero byte");
    REFUSED(BEGIN "}(" X TENSOR TEXT("\1", "y") TENSOR X TENSOR "u.", "tensor_file: tensor 'x' occurs twice");
    REFUSED(BEGIN "}(" TEXT("\5", "model") "}" X TENSOR "u.",
            "the file has 'x' in addition to 'model', and 'x' is a tensor; save 'model' alone");
    REFUSED(BEGIN "}(" TEXT("\5", "model") "}" TEXT("\xa", "state_dict") "}u.",
            "the file has 'state_dict' in addition to 'model', and 'state_dict' is a dictionary; save 'model' alone");
    REFUSED(BEGIN "}(" TEXT("\5", "model") "}" TEXT("\5", "model") "}u.",
            "the file has 'model' in addition to 'model'");
    kr_ctx_destroy(ctx);
}

TEST(pickle_tensors_refused)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    static const char arguments[] =
        "a tensor is not made of (storage, offset, sizes, strides, requires_grad, no hooks)";
    REFUSED(BEGIN REBUILD ")R.", arguments);
    REFUSED(BEGIN REBUILD "(" SIX INT("\0") TWO_THREE THREE_ONE "\x89tR.", arguments);
    REFUSED(BEGIN REBUILD "(" SIX INT("\0") TWO_THREE THREE_ONE "\x89" NO_HOOKS "NNtR.", arguments);
    REFUSED(BEGIN REBUILD "(N" INT("\0") TWO_THREE THREE_ONE "\x89" NO_HOOKS "tR.", arguments);
    REFUSED(BEGIN REBUILD "(" SIX "N" TWO_THREE THREE_ONE "\x89" NO_HOOKS "tR.", arguments);
    REFUSED(BEGIN REBUILD "(" SIX "J\xff\xff\xff\xff" TWO_THREE THREE_ONE "\x89" NO_HOOKS "tR.", arguments);
    REFUSED(BEGIN REBUILD "(" SIX INT("\0") "N" THREE_ONE "\x89" NO_HOOKS "tR.", arguments);
    REFUSED(BEGIN REBUILD "(" SIX INT("\0") TWO_THREE "N\x89" NO_HOOKS "tR.", arguments);
    REFUSED(BEGIN REBUILD "(" SIX INT("\0") TWO_THREE THREE_ONE INT("\0") NO_HOOKS "tR.", arguments);
    REFUSED(BEGIN REBUILD "(" SIX INT("\0") TWO_THREE THREE_ONE "\x89NtR.", arguments);
    REFUSED(BEGIN REBUILD "(" SIX INT("\0") TWO_THREE THREE_ONE "\x89}" X "NstR.", arguments);
    REFUSED(BEGIN REBUILD "(" SIX INT("\0") TWO_THREE THREE_ONE "\x89" NO_HOOKS "}" X "\x88stR.",
            "a tensor has metadata: a view that is conjugated or negated");
    static const char parameter[] = "a parameter is not made of (tensor, requires_grad, no hooks)";
    REFUSED(BEGIN PARAMETER ")R.", parameter);
    REFUSED(BEGIN PARAMETER SIX "\x89" NO_HOOKS "\x87R.", parameter);
    REFUSED(BEGIN PARAMETER TENSOR "N" NO_HOOKS "\x87R.", parameter);
    REFUSED(BEGIN PARAMETER TENSOR "\x89N\x87R.", parameter);
    /* axes */
    static const char axis1[] = "size and stride of axis 1 of a tensor are not both integers >= 0";
    REFUSED(BEGIN FLAT(TWO_THREE, INT("\1") "\x85") ".", "a tensor has 2 sizes and 1 strides, but must have as many");
    REFUSED(BEGIN FLAT("(NNNNNNNNNt", "(NNNNNNNNNt") ".", "a tensor has 9 sizes and 9 strides, but must have as many");
    REFUSED(BEGIN FLAT(INT("\2") "N\x86", THREE_ONE) ".", axis1);
    REFUSED(BEGIN FLAT(INT("\2") "J\xff\xff\xff\xff\x86", THREE_ONE) ".", axis1);
    REFUSED(BEGIN FLAT(TWO_THREE, INT("\3") "\x88\x86") ".", axis1);
    REFUSED(BEGIN FLAT(TWO_THREE, INT("\3") "J\0\0\0\x80\x86") ".", axis1);
    REFUSED(BEGIN FLAT("\x8a\x8\0\0\0\0\0\0\0\x20\x85", INT("\0") "\x85") ".",
            "a tensor of shape [2305843009213693952] has too many elements to address");
    /* beyond the storage */
    static const char beyond[] = "reaches beyond its storage '0' of 6 elements";
    REFUSED(BEGIN TENSOR_OF(SIX, "\1", TWO_THREE, THREE_ONE) ".",
            "a tensor of shape [2, 3] at element 1 reaches beyond its storage '0' of 6 elements");
    REFUSED(BEGIN FLAT(INT("\7") "\x85", INT("\1") "\x85") ".", beyond);
    REFUSED(BEGIN FLAT(TWO_THREE, INT("\4") INT("\1") "\x86") ".", beyond);
    REFUSED(BEGIN FLAT(TWO_THREE, INT("\2") INT("\2") "\x86") ".", beyond);
    REFUSED(BEGIN FLAT(TWO_THREE, "\x8a\x8\xff\xff\xff\xff\xff\xff\xff\x7f" INT("\1") "\x86") ".", beyond);
    REFUSED(BEGIN TENSOR_OF(SIX, "\6", ")", ")") ".", beyond);
    REFUSED(BEGIN TENSOR_OF(SIX, "\7", INT("\0") "\x85", INT("\1") "\x85") ".", beyond);
    REFUSED(BEGIN REBUILD "(" SIX "\x8a\x8\xff\xff\xff\xff\xff\xff\xff\x7f" TWO_THREE THREE_ONE "\x89" NO_HOOKS "tR.",
            "a tensor of shape [2, 3] at element 9223372036854775807 reaches beyond its storage '0' of 6 elements");
    /* a storage that the file has not, or otherwise */
    REFUSED(BEGIN "}" X TENSOR_OF(STORAGE("FloatStorage", "\7"), "\0", TWO_THREE, THREE_ONE) "s.",
            "tensor_file: tensor 'x': its storage '0' has 24 bytes, but should be 7 times 4");
    REFUSED(BEGIN "}" X TENSOR_OF(STORAGE("FloatStorage", "\5"), "\0", ")", ")") "s.",
            "tensor 'x': its storage '0' has 24 bytes, but should be 5 times 4");
    REFUSED(BEGIN "}" X REBUILD "((" TEXT("\7", "storage") "ctorch\nFloatStorage\n" TEXT("\1", "1")
                X INT("\6") "tQ" INT("\0") TWO_THREE THREE_ONE "\x89" NO_HOOKS "tRs.",
            "tensor 'x': its storage '1' is not in the file");
    REFUSED(BEGIN "}" X TENSOR "s" TEXT("\1", "y") TENSOR_OF(STORAGE("IntStorage", "\6"), "\0", ")", ")") "s.",
            "tensor 'y': its storage '0' is a IntStorage, but was a FloatStorage before");
    kr_ctx_destroy(ctx);
}

/* Programs that would take much time or memory, did it not have to be in proportion to their length. */
TEST(pickle_limits)
{
    kr_ctx *ctx = kr_test_ctx(1, NULL);
    const size_t most = (size_t)4 << 20, n = most + 100;
    unsigned char *program = malloc(2 * n);
    memcpy(program, BEGIN, 2);
    memset(program + 2, 'N', n - 3);
    program[n - 1] = '.';
    check_refused(ctx, make_torch(program, n), "it keeps more than 4194304 values");
    memset(program + 2, '(', n - 3);
    check_refused(ctx, make_torch(program, n), "it keeps more than 4194304 values");
    if (!kr_test_quick()) {
        for (size_t i = 0; i < n; i++) memcpy(program + 2 + 2 * i, "}\x85", 2); /* nested tuples and dictionaries */
        check_refused(ctx, make_torch(program, 2 * n),
                      "it creates more than 4194304 objects, or more than 268435456 bytes");
    }
    /* one value, wrapped many times over: no call for each wrapping */
    memset(program + 2, 0x85, n - 3);
    program[2] = '}';
    program[most - 101] = '.';
    check_refused(ctx, make_torch(program, most - 100),
                  "the file holds a tuple, but must hold a dictionary of tensors");
    free(program);
    /* the same long attributes set again and again: a moment, not the square of the length */
    image m = { .bytes = NULL };
    put(&m,
        BEGIN NO_HOOKS "q\0"
                       "}q\1(",
        sizeof(BEGIN NO_HOOKS "q\0"
                              "}q\1(") -
            1);
    for (int i = 0; i < 100000; i++) put(&m, TEXT("\x9", "_metadata") "N", 15);
    put(&m, "u", 1);
    for (int i = 0; i < 100000; i++) put(&m, "bh\1", 3);
    const clock_t start = clock();
    check_refused(ctx, make_torch(m.bytes, m.count), "the attribute '_metadata' is set on an OrderedDict, but");
    CHECK((double)(clock() - start) / CLOCKS_PER_SEC < 5, "slow");
    free(m.bytes);
    kr_ctx_destroy(ctx);
}
