/* facts.h - contents of the other files of a run's folder, as pairs of texts for a table. The files are untrusted and
 * optional. */
#ifndef KR_CLI_REPORT_FACTS_H
#define KR_CLI_REPORT_FACTS_H

#include <krait/ctx.h>

typedef struct fact {
    char *key, *value;
} fact;

typedef struct facts {
    int count;
    fact *fact;
    int64_t more;        /* number of omitted ones */
    char complaint[256]; /* why the file could not be read; empty otherwise */
} facts;

/* The members of FOLDER/NAME, a JSON object: those of an object inside it as "outer.inner". Without such a file there
 * are none. */
void facts_read(facts *f, kr_ctx *ctx, const char *folder, const char *name);

/* A fact by its key; NULL: there is none. */
const char *facts_find(const facts *f, const char *key);

void facts_free(facts *f);

/* "mamba3, 585 k parameters" out of FOLDER/config.json; empty if it is not a model's. */
const char *facts_model(kr_ctx *ctx, const char *folder, char *text, size_t bytes);

#endif
