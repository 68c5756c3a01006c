/* entry.h - begin and end of a call into the library.
 *
 * Functions of the public headers are defined in the modules and reached by other modules directly. A program reaches them
 * through an entry, generated from the headers by api/entries.awk, which
 *
 *   - makes the calling thread the user of the context until the call returns; a call by another thread meanwhile changes
 *     nothing, returns a neutral value and marks the context as shared, which becomes its error,
 *   - refuses to compute with a context of the parent in a forked child,
 *   - invalidates the tape of the call if the call failed.
 *
 * Calls nest: callbacks of the program run on the thread that uses the context.
 */
#ifndef KR_BASE_ENTRY_H
#define KR_BASE_ENTRY_H

#include "base/ctx_impl.h"

#define KR_SHARED_TEXT "ctx: used by two threads at once; create a context for each thread"

typedef enum kr_entry_kind {
    KR_ENTRY_COMPUTES,
    KR_ENTRY_DESTROYS /* also allowed in a forked child */
} kr_entry_kind;

typedef struct kr_entry {
    kr_ctx *ctx;             /* NULL: nothing to end */
    bool *tape, *outer_tape; /* whether the tape of this call failed; the same of the call around it */
    bool was_ok;
} kr_entry;

/* The context that an object belongs to: its first member. NULL for NULL. */
static inline kr_ctx *kr_ctx_of(const void *object)
{
    return object ? *(kr_ctx *const *)object : (kr_ctx *)0;
}

/* False: return a neutral value at once, without kr_entry_end. A NULL ctx is no error here. tape: NULL, or where the failure
 * of the call's tape is noted. */
bool kr_entry_begin(kr_entry *entry, kr_ctx *ctx, bool *tape, kr_entry_kind kind);
void kr_entry_end(const kr_entry *entry);

/* Was it used by two threads at once without that error being recorded yet? Callable from any thread. */
bool kr_ctx_is_shared(const kr_ctx *ctx);

/* Was it created by the parent of this process? */
bool kr_ctx_is_forked(const kr_ctx *ctx);

#endif
