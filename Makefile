# hearth's build. `./dev build` calls it; targets: all (default), lib, tests, fuzz, benches, install (PREFIX, DESTDIR), clean.
# A file's suffix decides its flags: *_avx2.c *_avx512.c *_amx.c. Folders are wildcards: a new file needs no line here.
# SAN=asan|tsan|fuzz builds into build-asan, build-tsan, build-fuzz with the sanitizer (fuzz: clang); everything else is the same.
SAN ?=
BUILD ?= build$(if $(SAN),-$(SAN))
ifeq ($(origin CC),default)
CC := $(if $(filter fuzz,$(SAN)),clang,gcc)
endif
CCACHE := $(shell command -v ccache 2>/dev/null)
VERSION := $(shell cat VERSION)

# -Wno-error: some diagnostics depend on optimisation (an unrolled loop that -O1 does not unroll); the plain build is the strict one.
SANFLAGS_asan := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -Wno-error -Werror=incompatible-pointer-types
SANFLAGS_tsan := -fsanitize=thread -Wno-error
SANFLAGS_fuzz := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -Wno-error -Werror=incompatible-pointer-types
# Fuzzing looks for faults in readers of foreign bytes; clang needs minutes to instrument the unrolled kernels, which read none.
san = $(if $(and $(filter fuzz,$(SAN)),$(findstring src/device/cpu/,$1)),-Wno-error,$(SANFLAGS_$(SAN)))
OPT := $(if $(SAN),-O1,-O2)
# -ffp-contract=off: the compiler must not fuse what ref writes as two roundings (docs/numerics.md).
CFLAGS := -std=gnu17 $(OPT) -g -Wall -Wextra -Werror -Wno-unused-parameter -fPIC -fvisibility=hidden -ffp-contract=off \
          -fno-math-errno -Wno-psabi -pthread -MMD -MP -Iinclude -D_GNU_SOURCE -DHEARTH_VERSION='"$(VERSION)"' $(EXTRA_CFLAGS)
ISA_avx2   := -mavx2 -mfma -mf16c
ISA_avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mfma -mf16c -mprefer-vector-width=512
ISA_amx    := $(ISA_avx512) -mamx-tile -mamx-int8 -mavx512vbmi
isa = $(if $(filter %_avx2.c,$1),$(ISA_avx2))$(if $(filter %_avx512.c,$1),$(ISA_avx512))$(if $(filter %_amx.c,$1),$(ISA_amx))

LIB_DIRS := base device device/cpu format text media model engine
BIN_DIRS := hub server cli
LIB_SRC := $(foreach d,$(LIB_DIRS),$(wildcard src/$d/*.c))
BIN_SRC := $(foreach d,$(BIN_DIRS),$(wildcard src/$d/*.c))
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o)
BIN_OBJ := $(BIN_SRC:%.c=$(BUILD)/%.o)
WEB_FILES := $(wildcard web/*)

LIB_LIBS := -lpcre2-8 -lutf8proc -lxxhash -lcrypto -lm -pthread
BIN_LIBS := $(LIB_LIBS) -lmicrohttpd -lcurl -lzip -ledit -lsqlite3

.PHONY: all lib tests fuzz benches install clean
.SECONDARY:
all: $(BUILD)/libhearth.a $(BUILD)/libhearth.so $(BUILD)/hearth.pc $(if $(wildcard src/cli/main.c),$(BUILD)/hearth)
lib: $(BUILD)/libhearth.a

$(BUILD)/%.o: %.c Makefile VERSION
	@mkdir -p $(@D)
	$(CCACHE) $(CC) $(CFLAGS) $(call san,$<) $(call isa,$<) -c $< -o $@

$(BUILD)/libhearth.a: $(LIB_OBJ)
	@rm -f $@
	ar rcs $@ $^
$(BUILD)/libhearth.so: $(LIB_OBJ)
	$(CC) -shared $(SANFLAGS_$(SAN)) -Wl,-soname,libhearth.so.0 -o $@ $^ $(LIB_LIBS)
	@ln -sf libhearth.so $(BUILD)/libhearth.so.0

# pkg-config: build/hearth.pc describes the library in this tree, the installed one that under PREFIX. Programs find it there
# when they run, wherever the loader does not look by itself.
comma := ,
rpath = $(if $(filter /usr/lib /usr/local/lib,$1),, -Wl$(comma)-rpath$(comma)$1)
pc = printf '%s\n' 'Name: hearth' 'Description: run language models on your own machine' 'Version: $(VERSION)' \
     'Cflags: -I$1' 'Libs: -L$2 -lhearth$3' 'Libs.private: $(LIB_LIBS)'
$(BUILD)/hearth.pc: Makefile VERSION
	@mkdir -p $(@D)
	@$(call pc,$(abspath include),$(abspath $(BUILD)),$(call rpath,$(abspath $(BUILD)))) > $@

PREFIX ?= /usr/local
DEST = $(DESTDIR)$(PREFIX)
SO = libhearth.so.$(VERSION)
install: all
	install -d $(DEST)/bin $(DEST)/include $(DEST)/lib/pkgconfig
	[ ! -e $(BUILD)/hearth ] || install -m 755 $(BUILD)/hearth $(DEST)/bin
	install -m 644 include/hearth.h $(DEST)/include
	install -m 644 $(BUILD)/libhearth.a $(DEST)/lib
	install -m 755 $(BUILD)/libhearth.so $(DEST)/lib/$(SO)
	ln -sf $(SO) $(DEST)/lib/libhearth.so.0
	ln -sf $(SO) $(DEST)/lib/libhearth.so
	@$(call pc,$(PREFIX)/include,$(PREFIX)/lib,$(call rpath,$(PREFIX)/lib)) > $(DEST)/lib/pkgconfig/hearth.pc

# The page's files, embedded: one symbol pair a file, listed in a table (src/server/web.h).
$(BUILD)/web_files.S: $(WEB_FILES) tools/embed.sh
	@mkdir -p $(@D)
	sh tools/embed.sh $(WEB_FILES) > $@
$(BUILD)/web_files.o: $(BUILD)/web_files.S
	$(CC) -c $< -o $@

$(BUILD)/hearth: $(BIN_OBJ) $(BUILD)/web_files.o $(BUILD)/libhearth.a
	$(CC) $(SANFLAGS_$(SAN)) -o $@ $^ $(BIN_LIBS)

# The server over a scripted engine, for tests/api and tests/web.
FAKE_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(wildcard tests/api/fake_*.c src/server/*.c)) $(BUILD)/web_files.o
$(BUILD)/tests/fake_server: $(FAKE_OBJ) $(BUILD)/libhearth.a
	$(CC) $(SANFLAGS_$(SAN)) -o $@ $^ $(LIB_LIBS) -lmicrohttpd -lcrypto -lsqlite3

# tests/unit/x_test.c and tests/op/x_test.c are one program each (cmocka).
TEST_SRC := $(wildcard tests/unit/*_test.c) $(wildcard tests/op/*_test.c)
TEST_BIN := $(TEST_SRC:%.c=$(BUILD)/%)
TEST_HELP := $(patsubst %.c,$(BUILD)/%.o,$(filter-out $(TEST_SRC),$(wildcard tests/unit/*.c) $(wildcard tests/op/*.c)))
tests: $(TEST_BIN) $(if $(wildcard src/text/output.c),$(BUILD)/tests/fake_server)
$(BUILD)/tests/%_test: $(BUILD)/tests/%_test.o $(TEST_HELP) $(BUILD)/libhearth.a
	$(CC) $(SANFLAGS_$(SAN)) -o $@ $^ $(LIB_LIBS) -lcmocka

# tests/fuzz/x_fuzz.c: one libFuzzer program each; `make SAN=fuzz fuzz`.
FUZZ_BIN := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/fuzz/*_fuzz.c))
fuzz: $(FUZZ_BIN)
$(BUILD)/tests/fuzz/%_fuzz: $(BUILD)/tests/fuzz/%_fuzz.o $(BUILD)/libhearth.a
	$(CC) $(SANFLAGS_$(SAN)) -fsanitize=fuzzer -o $@ $^ $(LIB_LIBS)

# tests/bench/x_bench.c: micro-benchmarks, run by `./dev bench`.
BENCH_BIN := $(patsubst %.c,$(BUILD)/%,$(wildcard tests/bench/*.c))
benches: $(BENCH_BIN)
$(BUILD)/tests/bench/%: $(BUILD)/tests/bench/%.o $(BUILD)/libhearth.a
	$(CC) $(SANFLAGS_$(SAN)) -o $@ $^ $(LIB_LIBS)

clean:
	rm -rf build build-*

-include $(LIB_OBJ:.o=.d) $(BIN_OBJ:.o=.d) $(FAKE_OBJ:.o=.d) $(TEST_BIN:=.d) $(FUZZ_BIN:=.d) $(BENCH_BIN:=.d)
