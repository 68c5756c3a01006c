/* plugin_host.c - a host that uses the shared library, and a plug-in with a Krait of its own, which it loads and unloads. */
#include <krait/krait.h>

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    kr_ctx *ctx = kr_ctx_create(NULL);
    for (int i = 0; argc > 1 && i < 2; i++) {
        void *plugin = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
        void *found = plugin ? dlsym(plugin, "plugin_run") : NULL;
        bool (*run)(const void *create_of_host);
        memcpy(&run, &found, sizeof run);
        if (!found || !run((const void *)kr_ctx_create)) fprintf(stderr, "plugin_host: %s\n", dlerror());
        if (plugin) dlclose(plugin);
    }
    const bool ok = !kr_ctx_failed(ctx);
    kr_ctx_destroy(ctx);
    return ok ? 0 : 1;
}
