#include "grammar_internal.h"
gx tools_build(builder *b, const grammar_spec *s) {
    return builder_fail(b, "%s: not here", s->field);
}
