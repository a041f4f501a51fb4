/* Limits of control groups: v1, v2, both at once, nested, mounted together, seen from inside a container; and of
 * resources. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "../../src/base/limit.h"
#include "../../src/base/pool.h"

static char root[40], groups[60];

static void write_file(const char *name, const char *text) {
    char path[300], dir[300];
    snprintf(path, sizeof path, "%s/%s", root, name);
    snprintf(dir, sizeof dir, "%s", path);
    *strrchr(dir, '/') = 0;
    error err = {0};
    assert_true(dir_make(dir, &err));
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}
static int setup(void **state) {
    snprintf(root, sizeof root, "/tmp/hearth_limit_XXXXXX");
    assert_non_null(mkdtemp(root));
    snprintf(groups, sizeof groups, "%s/self", root);
    return 0;
}
static int teardown(void **state) {
    char cmd[80];
    snprintf(cmd, sizeof cmd, "rm -r %s", root);
    return system(cmd);
}
static size_t memory(void) {
    return limit_memory_at(groups, root, 777);
}
static int cpus(void) {
    return limit_cpus_at(groups, root);
}

static void v2_nested(void **state) {
    assert_int_equal(memory(), 777); /* no such file: the machine */
    assert_int_equal(cpus(), 0);
    write_file("self", "0::/a/b\n");
    write_file("a/b/memory.max", "max\n");
    write_file("a/b/cpu.max", "max 100000\n");
    assert_int_equal(memory(), 777);
    assert_int_equal(cpus(), 0);
    write_file("a/memory.max", "500\n"); /* a parent's limit counts */
    write_file("a/cpu.max", "150000 100000\n");
    assert_int_equal(memory(), 500);
    assert_int_equal(cpus(), 2); /* rounded up */
    write_file("a/b/memory.max", "600\n");
    write_file("a/b/cpu.max", "800000 100000\n");
    assert_int_equal(memory(), 500);
    assert_int_equal(cpus(), 2);
    write_file("a/b/cpu.max", "50000 100000\n");
    assert_int_equal(cpus(), 1);
    write_file("memory.max", "400\n"); /* the root of a container */
    assert_int_equal(memory(), 400);
}

static void v1_alone_and_together(void **state) {
    write_file("self", "12:pids:/x\n7:cpu,memory:/slice/job\n");
    assert_int_equal(memory(), 777);
    write_file("cpu,memory/slice/memory.limit_in_bytes", "555\n"); /* mounted together */
    write_file("cpu,memory/slice/job/cpu.cfs_quota_us", "300000\n");
    write_file("cpu,memory/slice/job/cpu.cfs_period_us", "100000\n");
    assert_int_equal(memory(), 555);
    assert_int_equal(cpus(), 3);
    write_file("cpu,memory/slice/job/cpu.cfs_quota_us", "-1\n");
    assert_int_equal(cpus(), 0);
    write_file("memory/slice/job/memory.limit_in_bytes", "444\n"); /* each with a link of its own */
    assert_int_equal(memory(), 444);
    write_file("memory/memory.limit_in_bytes", "333\n"); /* seen from inside a container */
    assert_int_equal(memory(), 333);
    assert_int_equal(limit_memory_at(groups, root, 100), 100);
    write_file("self", "4:memory:/not/there\n0::/neither\n");
    assert_int_equal(memory(), 333);
    write_file("memory/memory.limit_in_bytes", "9223372036854771712\n"); /* how v1 says "none" */
    assert_int_equal(memory(), 777);
}

static void both_at_once(void **state) {
    write_file("self", "4:memory:/job\n1:cpu:/\n0::/job\n");
    write_file("memory/job/memory.limit_in_bytes", "600\n");
    write_file("unified/job/memory.max", "500\n");
    write_file("unified/job/cpu.max", "200000 100000\n");
    assert_int_equal(memory(), 500);
    assert_int_equal(cpus(), 2);
}

static void nonsense_is_ignored(void **state) {
    write_file("self", "\n::\nabc\n0:x\n0::relative\n0::/../../etc\n4:memory\n4:memory:/a\n");
    write_file("memory/a/memory.limit_in_bytes", "-1\n");
    assert_int_equal(memory(), 777);
    write_file("memory/a/memory.limit_in_bytes", "many\n");
    assert_int_equal(memory(), 777);
}

/* In a child: limits of resources do not come back. */
static int limited(int what, rlim_t most) {
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit r = {most, most};
        if (setrlimit(what, &r)) _exit(2);
        size_t n = limit_memory(), room = limit_address_space();
        if (!limit_counts_mapped()) _exit(3);
        if (what == RLIMIT_AS) _exit(n <= room && room < most && room > 0 ? 0 : 1); /* what is mapped is gone already */
        _exit(n <= most && room == SIZE_MAX ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 99;
}
static void resource_limits_count(void **state) {
    assert_true(limit_memory() > 1 << 20 && limit_memory() <= limit_ram());
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* their shadow is larger than any limit */
    assert_int_equal(limited(RLIMIT_AS, (rlim_t)1 << 30), 0);
    assert_int_equal(limited(RLIMIT_DATA, (rlim_t)1 << 29), 0);
#endif
    int quota = limit_cpus();
    assert_true(!quota || pool_threads_default() <= quota);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(v2_nested, setup, teardown),
        cmocka_unit_test_setup_teardown(v1_alone_and_together, setup, teardown),
        cmocka_unit_test_setup_teardown(both_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(nonsense_is_ignored, setup, teardown),
        cmocka_unit_test(resource_limits_count),
    };
    return cmocka_run_group_tests_name("limit", tests, NULL, NULL);
}
