/* bench_load.c - the system's busy time minus our own. */
#define _DEFAULT_SOURCE
#include "bench/bench_load.h"

#include "base/cpu.h"
#include "bench/bench_measure.h"

#include <stdio.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static double seconds_of(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

load_event load_begin(void)
{
    load_event now = { .wall = clock_ns() / 1e9 };
    struct rusage own;
    if (getrusage(RUSAGE_SELF, &own) == 0) now.own = seconds_of(own.ru_utime) + seconds_of(own.ru_stime);
    FILE *file = fopen("/proc/stat", "r");
    if (!file) return now;
    double user, nice, system, idle, iowait, irq, softirq, steal;
    if (fscanf(file, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &user, &nice, &system, &idle, &iowait, &irq, &softirq,
               &steal) == 8) {
        const double ticks = (double)sysconf(_SC_CLK_TCK);
        now.normal = (user + system + irq + softirq + steal) / ticks;
        now.low = nice / ticks;
    }
    fclose(file);
    return now;
}

static double cpus_of(double taken, double wall)
{
    const double cpus = wall > 0 && taken > 0 ? taken / wall : 0, all = kr_cpu_allowed(NULL, 0);
    return cpus < all ? cpus : all; /* the clocks differ in short cases */
}

double load_foreign(const load_event *then)
{
    const load_event now = load_begin();
    return cpus_of(now.normal + now.low - then->normal - then->low - (now.own - then->own), now.wall - then->wall);
}

double load_wait_quiet(double seconds)
{
    const double quiet = 0.1; /* CPUs */
    const struct timespec moment = { 0, 300 * 1000 * 1000 };
    const double start = clock_ns() / 1e9;
    double waited = 0;
    while (waited < seconds) {
        const load_event then = load_begin();
        nanosleep(&moment, NULL);
        const load_event now = load_begin();
        waited = now.wall - start;
        if (cpus_of(now.normal - then.normal - (now.own - then.own), now.wall - then.wall) < quiet) break;
    }
    return waited;
}
