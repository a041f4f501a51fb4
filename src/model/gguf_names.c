/* gguf_names: what a GGUF file calls things, by table: metadata becomes the config.json that families read, and Hugging
 * Face's tensor names become GGUF's. A new architecture is one line in `architectures`, with a table of its own where
 * it differs. Not here: reading GGUF (format/), what a conversion did to the values (the family file; model->gguf). */
#include <stdio.h>
#include "internal.h"

typedef struct pair {
    const char *hf, *gguf;
} pair;

/* Keys below "<architecture>.". */
static const pair metadata[] = {
    {"num_hidden_layers", "block_count"},
    {"hidden_size", "embedding_length"},
    {"intermediate_size", "feed_forward_length"},
    {"num_attention_heads", "attention.head_count"},
    {"num_key_value_heads", "attention.head_count_kv"},
    {"head_dim", "attention.key_length"},
    {"rms_norm_eps", "attention.layer_norm_rms_epsilon"},
    {"norm_epsilon", "attention.layer_norm_epsilon"},
    {"attention_multiplier", "attention.scale"},
    {"embedding_multiplier", "embedding_scale"},
    {"residual_multiplier", "residual_scale"},
    {"logits_scaling", "logit_scale"},
    {"max_position_embeddings", "context_length"},
    {"rope_theta", "rope.freq_base"},
    {"sliding_window", "attention.sliding_window"},
    {"num_local_experts", "expert_count"},
    {"attn_logit_softcapping", "attn_logit_softcapping"},
    {"final_logit_softcapping", "final_logit_softcapping"},
    {"rope_local_base_freq", "rope.freq_base_swa"},
};
/* Gemma 4's lengths without "swa" are those of layers that see everything. */
static const pair gemma4_metadata[] = {
    {"head_dim", "attention.key_length_swa"},
    {"global_head_dim", "attention.key_length"},
    {"num_kv_shared_layers", "attention.shared_kv_layers"},
    {"hidden_size_per_layer_input", "embedding_length_per_layer_input"},
    {"num_experts", "expert_count"},
    {"top_k_experts", "expert_used_count"},
    {"moe_intermediate_size", "expert_feed_forward_length"},
};
static const pair qwen_metadata[] = {
    /* those with experts or recurrent layers */
    {"num_experts", "expert_count"},
    {"num_experts_per_tok", "expert_used_count"},
    {"moe_intermediate_size", "expert_feed_forward_length"},
    {"shared_expert_intermediate_size", "expert_shared_feed_forward_length"},
    {"full_attention_interval", "full_attention_interval"},
    {"linear_conv_kernel_dim", "ssm.conv_kernel"},
    {"linear_num_key_heads", "ssm.group_count"},
    {"linear_num_value_heads", "ssm.time_step_rank"},
    {"linear_key_head_dim", "ssm.state_size"},
};
static const pair deepseek_metadata[] = {
    {"q_lora_rank", "attention.q_lora_rank"},
    {"kv_lora_rank", "attention.kv_lora_rank"},
    {"v_head_dim", "attention.value_length_mla"},
    {"v_head_dim", "attention.value_length"}, /* files from before keys were absorbed */
    {"qk_rope_head_dim", "rope.dimension_count"},
    {"first_k_dense_replace", "leading_dense_block_count"},
    {"n_routed_experts", "expert_count"},
    {"num_experts_per_tok", "expert_used_count"},
    {"moe_intermediate_size", "expert_feed_forward_length"},
    {"n_shared_experts", "expert_shared_count"},
    {"n_group", "expert_group_count"},
    {"topk_group", "expert_group_used_count"},
    {"routed_scaling_factor", "expert_weights_scale"},
    {"norm_topk_prob", "expert_weights_norm"},
};
static const pair scaling_metadata[] = {
    {"rope_type", "rope.scaling.type"},
    {"factor", "rope.scaling.factor"},
    {"original_max_position_embeddings", "rope.scaling.original_context_length"},
    {"attention_factor", "rope.scaling.attn_factor"},
    {"beta_fast", "rope.scaling.yarn_beta_fast"},
    {"beta_slow", "rope.scaling.yarn_beta_slow"},
};
/* Divisors of the rotary frequencies that a conversion wrote as tensors. */
static const pair scaling_tensors[] = {
    {"freq_factors", "rope_freqs.weight"},
    {"long_factor", "rope_factors_long.weight"},
    {"short_factor", "rope_factors_short.weight"},
};
/* Flags that a GGUF shows by having the tensor. */
static const pair bias_tensors[] = {
    {"attention_bias", "blk.0.attn_q.bias"},
    {"use_bias", "blk.0.attn_q.bias"},
    {"mlp_bias", "blk.0.ffn_up.bias"},
};
static const char *const eos_keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};

/* Gemma's tokens that end a turn: the metadata names one of them at most. */
static const char *const eos_texts[] = {"<end_of_turn>", "<turn|>", "<|tool_response>"};

/* Module names; those of layers are below "model.layers.N." and "blk.N.". */
static const pair common_names[] = {
    {"model.embed_tokens", "token_embd"}, {"model.norm", "output_norm"},       {"lm_head", "output"},
    {"input_layernorm", "attn_norm"},     {"self_attn.q_proj", "attn_q"},      {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},       {"self_attn.o_proj", "attn_output"}, {"post_attention_layernorm", "ffn_norm"},
    {"mlp.gate_proj", "ffn_gate"},        {"mlp.up_proj", "ffn_up"},           {"mlp.down_proj", "ffn_down"},
    {"self_attn.q_norm", "attn_q_norm"},  {"self_attn.k_norm", "attn_k_norm"}, {"self_attn.qkv_proj", "attn_qkv"},
    {"mlp.gate_up_proj", "ffn_up"},
};
static const pair olmo2_names[] = {
    {"post_attention_layernorm", "post_attention_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
};
static const pair glm4_names[] = {
    {"post_self_attn_layernorm", "post_attention_norm"},
    {"post_mlp_layernorm", "post_ffw_norm"},
};
static const pair starcoder2_names[] = {
    {"model.norm.bias", "output_norm.bias"},
    {"input_layernorm.bias", "attn_norm.bias"},
    {"post_attention_layernorm.bias", "ffn_norm.bias"},
    {"mlp.c_fc", "ffn_up"},
    {"mlp.c_proj", "ffn_down"},
};

static const pair gemma_names[] = {
    {"post_attention_layernorm", "post_attention_norm"},
    {"pre_feedforward_layernorm", "ffn_norm"},
    {"post_feedforward_layernorm", "post_ffw_norm"},
    /* Gemma 4 */
    {"layer_scalar", "layer_output_scale"},
    {"model.embed_tokens_per_layer", "per_layer_token_embd"},
    {"model.per_layer_model_projection", "per_layer_model_proj"},
    {"model.per_layer_projection_norm", "per_layer_proj_norm"},
    {"per_layer_input_gate", "inp_gate"},
    {"per_layer_projection", "proj"},
    {"post_per_layer_input_norm", "post_norm"},
    {"router.proj", "ffn_gate_inp"},
    {"router.scale", "ffn_gate_inp.scale"},
    {"router.per_expert_scale", "ffn_down_exps.scale"},
    {"pre_feedforward_layernorm_2", "pre_ffw_norm_2"},
    {"post_feedforward_layernorm_1", "post_ffw_norm_1"},
    {"post_feedforward_layernorm_2", "post_ffw_norm_2"},
    {"experts.switch_glu.gate_proj", "ffn_gate_exps"},
    {"experts.switch_glu.up_proj", "ffn_up_exps"},
    {"experts.switch_glu.down_proj", "ffn_down_exps"},
};

static const pair qwen3_moe_names[] = {
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.switch_mlp.gate_proj", "ffn_gate_exps"},
    {"mlp.switch_mlp.up_proj", "ffn_up_exps"},
    {"mlp.switch_mlp.down_proj", "ffn_down_exps"},
};
static const pair qwen3_5_names[] = {
    {"linear_attn.in_proj_qkv", "attn_qkv"},
    {"linear_attn.in_proj_z", "attn_gate"},
    {"linear_attn.in_proj_b", "ssm_beta"},
    {"linear_attn.in_proj_a", "ssm_alpha"},
    {"linear_attn.in_proj_ba", "ssm_ba"},
    {"linear_attn.conv1d", "ssm_conv1d"},
    {"linear_attn.A_log", "ssm_a"},
    {"linear_attn.dt_bias", "ssm_dt.bias"},
    {"linear_attn.norm", "ssm_norm"},
    {"linear_attn.out_proj", "ssm_out"},
    {"post_attention_layernorm", "post_attention_norm"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.switch_mlp.gate_proj", "ffn_gate_exps"},
    {"mlp.switch_mlp.up_proj", "ffn_up_exps"},
    {"mlp.switch_mlp.down_proj", "ffn_down_exps"},
    {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
    {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
    {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
};

static const pair deepseek_names[] = {
    {"self_attn.q_a_proj", "attn_q_a"},
    {"self_attn.q_b_proj", "attn_q_b"},
    {"self_attn.q_a_layernorm", "attn_q_a_norm"},
    {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
    {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
    {"self_attn.kv_b_proj", "attn_kv_b"},
    {"self_attn.embed_q", "attn_k_b"},
    {"self_attn.unembed_out", "attn_v_b"},
    {"mlp.gate", "ffn_gate_inp"},
    {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
    {"mlp.switch_mlp.gate_proj", "ffn_gate_exps"},
    {"mlp.switch_mlp.up_proj", "ffn_up_exps"},
    {"mlp.switch_mlp.down_proj", "ffn_down_exps"},
    {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
    {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
    {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
};

/* names: where an architecture differs from common_names; looked up first. */
#define OWN(table) table, COUNT(table)
static const struct architecture {
    const char *name, *model_type;
    const pair *names;
    size_t n_names;
    const pair *metadata; /* in place of the common ones */
    size_t n_metadata;
} architectures[] = {
    {"llama", "llama", NULL, 0, NULL, 0},
    {"qwen2", "qwen2", NULL, 0, NULL, 0},
    {"qwen3", "qwen3", NULL, 0, NULL, 0},
    {"smollm3", "smollm3", NULL, 0, NULL, 0},
    {"olmo2", "olmo2", OWN(olmo2_names), NULL, 0},
    {"granite", "granite", NULL, 0, NULL, 0},
    {"glm4", "glm4", OWN(glm4_names), NULL, 0},
    {"phi3", "phi3", NULL, 0, NULL, 0},
    {"starcoder2", "starcoder2", OWN(starcoder2_names), NULL, 0},
    {"qwen3moe", "qwen3_moe", OWN(qwen3_moe_names), OWN(qwen_metadata)},
    {"qwen35", "qwen3_5", OWN(qwen3_5_names), OWN(qwen_metadata)},
    {"qwen35moe", "qwen3_5", OWN(qwen3_5_names), OWN(qwen_metadata)},
    {"qwen3next", "qwen3_next", OWN(qwen3_5_names), OWN(qwen_metadata)},
    {"deepseek2", "deepseek_v3", OWN(deepseek_names), OWN(deepseek_metadata)},
    {"gemma", "gemma", NULL, 0, NULL, 0},
    {"gemma2", "gemma2", OWN(gemma_names), NULL, 0},
    {"gemma3", "gemma3", OWN(gemma_names), NULL, 0},
    {"gemma4", "gemma4", OWN(gemma_names), OWN(gemma4_metadata)},
};

static const struct architecture *architecture_of(const checkpoint *c) {
    str name = json_str(json_get(checkpoint_config(c), "general.architecture"), STR(""));
    for (size_t i = 0; i < COUNT(architectures); i++)
        if (str_is(name, architectures[i].name)) return &architectures[i];
    return NULL;
}

static const char *find(const pair *table, size_t n, const char *hf) {
    for (size_t i = 0; i < n; i++)
        if (!strcmp(hf, table[i].hf)) return table[i].gguf;
    return NULL;
}

const char *gguf_name(const checkpoint *c, arena *a, const char *name) {
    const struct architecture *arch = architecture_of(c);
    int layer = -1, rest = 0;
    if (sscanf(name, "model.layers.%d.%n", &layer, &rest) != 1 || !rest) layer = -1, rest = 0;
    const char *found = find(arch->names, arch->n_names, name + rest);
    if (!found) found = find(common_names, COUNT(common_names), name + rest);
    return layer < 0 || !found ? found : arena_printf(a, "blk.%d.%s", layer, found);
}

/* A small f32 tensor as an array of numbers. */
static bool put_floats(json_builder *to, const char *key, const checkpoint *c, const stored_tensor *t, error *err) {
    size_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= (size_t)t->dim[i];
    if (n > 65536)
        return error_set(err, ERR_FORMAT, "%s: tensor %.*s has %zu elements", checkpoint_path(c), (int)t->name.n,
                         t->name.p, n);
    float *v = arena_alloc(to->a, n * sizeof *v);
    json *items = arena_alloc(to->a, n * sizeof *items);
    char *name = arena_copy(to->a, t->name.p, t->name.n);
    if (!checkpoint_floats(c, name, n, v, err)) return false;
    for (size_t i = 0; i < n; i++) items[i] = json_of_real(v[i]);
    json_put(to, key, (json){.type = JSON_ARRAY, .n = (uint32_t)n, .items = items});
    return true;
}

static void put_metadata(json_builder *to, const checkpoint *c, const char *arch, const pair *table, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char key[128];
        snprintf(key, sizeof key, "%s.%s", arch, table[i].gguf);
        const json *v = json_get(checkpoint_config(c), key);
        if (v) json_put(to, table[i].hf, *v);
    }
}

/* Numbers that the metadata holds only together with others. */
static void put_derived(json_builder *to, const checkpoint *c, const char *arch) {
    static const char *const keys[] = {"ssm.inner_size", "ssm.time_step_rank", "nextn_predict_layers", "block_count"};
    int64_t value[COUNT(keys)];
    for (size_t i = 0; i < COUNT(keys); i++) {
        char key[128];
        snprintf(key, sizeof key, "%s.%s", arch, keys[i]);
        value[i] = json_int(json_get(checkpoint_config(c), key), 0);
    }
    if (value[0] > 0 && value[1] > 0) json_put(to, "linear_value_head_dim", json_of_int(value[0] / value[1]));
    if (value[2] > 0 && value[2] < value[3]) /* the blocks of a prediction head come last */
        json_put(to, "num_hidden_layers", json_of_int(value[3] - value[2]));
}

/* Latent attention: a key's columns without position, how experts are scored, yarn's two scales (files know them equal
 * only). */
static void put_latent(json_builder *to, const checkpoint *c, const char *arch) {
    static const char *const keys[] = {"attention.key_length_mla", "attention.key_length", "rope.dimension_count",
                                       "expert_gating_func"};
    static const char *const scoring[] = {"softmax", "softmax", "sigmoid"};
    int64_t value[COUNT(keys)];
    char key[128];
    for (size_t i = 0; i < COUNT(keys); i++) {
        snprintf(key, sizeof key, "%s.%s", arch, keys[i]);
        value[i] = json_int(json_get(checkpoint_config(c), key), 0);
    }
    json_put(to, "qk_nope_head_dim", json_of_int((value[0] ? value[0] : value[1]) - value[2]));
    json_put(to, "scoring_func",
             json_of_str(str_of(value[3] >= 0 && value[3] < (int64_t)COUNT(scoring) ? scoring[value[3]] : "unknown")));
}

/* Which layers have a window: a flag each, or every how many one has none. */
static void put_windows(json_builder *to, const checkpoint *c, const char *arch) {
    char key[128];
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", arch);
    const json *pattern = json_get(checkpoint_config(c), key);
    if (json_is(pattern, JSON_INT)) json_put(to, "sliding_window_pattern", *pattern);
    if (!json_is(pattern, JSON_ARRAY)) return;
    json *types = arena_alloc(to->a, pattern->n * sizeof *types);
    for (uint32_t i = 0; i < pattern->n; i++) {
        const json *j = &pattern->items[i];
        bool sliding = json_bool(j, json_int(j, 0) != 0);
        types[i] = json_of_str(sliding ? STR("sliding_attention") : STR("full_attention"));
    }
    json_put(to, "layer_types", (json){.type = JSON_ARRAY, .n = pattern->n, .items = types});
}

/* A layer with keys and without values takes the keys. */
static bool lacks_values(const checkpoint *c, int64_t n_layers) {
    for (int i = 0; i < n_layers; i++) {
        char k[48], v[48];
        snprintf(k, sizeof k, "blk.%d.attn_k.weight", i);
        snprintf(v, sizeof v, "blk.%d.attn_v.weight", i);
        if (checkpoint_tensor(c, str_of(k)) && !checkpoint_tensor(c, str_of(v))) return true;
    }
    return false;
}

static bool put_scaling(json_builder *to, const checkpoint *c, const char *arch, error *err) {
    json_builder b = {.a = to->a};
    put_metadata(&b, c, arch, scaling_metadata, COUNT(scaling_metadata));
    char key[128];
    snprintf(key, sizeof key, "%s.rope.scaling.yarn_log_multiplier", arch); /* a tenth of both mscales */
    double tenth = json_real(json_get(checkpoint_config(c), key), 0);
    if (tenth > 0)
        json_put(&b, "mscale", json_of_real(tenth * 10)), json_put(&b, "mscale_all_dim", json_of_real(tenth * 10));
    bool lists = false;
    for (size_t i = 0; i < COUNT(scaling_tensors); i++) {
        const stored_tensor *t = checkpoint_tensor(c, str_of(scaling_tensors[i].gguf));
        if (t && !put_floats(&b, scaling_tensors[i].hf, c, t, err)) return false;
        if (t && !i) json_put(&b, "rope_type", json_of_str(STR("freq_factors")));
        lists |= t && i;
    }
    if (lists) json_put(&b, "rope_type", json_of_str(STR("longrope")));
    const json *scaling = json_built(&b);
    if (json_get(scaling, "rope_type") && !str_is(json_str(json_get(scaling, "rope_type"), STR("")), "none"))
        json_put(to, "rope_scaling", *scaling);
    return true;
}

static void put_eos(json_builder *to, const json *meta) {
    json *eos = arena_alloc(to->a, (COUNT(eos_keys) + COUNT(eos_texts)) * sizeof *eos);
    uint32_t n = 0;
    for (size_t i = 0; i < COUNT(eos_keys); i++) {
        const json *id = json_get(meta, eos_keys[i]);
        if (json_is(id, JSON_INT)) eos[n++] = *id;
    }
    const json *tokens = json_get(meta, "tokenizer.ggml.tokens");
    size_t n_tokens = json_is(tokens, JSON_ARRAY) ? tokens->n : 0;
    for (size_t k = 0; k < COUNT(eos_texts); k++) {
        size_t i = 0;
        while (i < n_tokens && !str_is(json_str(&tokens->items[i], STR("")), eos_texts[k])) i++;
        if (i < n_tokens) eos[n++] = json_of_int((int64_t)i);
    }
    json_put(to, "eos_token_id", (json){.type = JSON_ARRAY, .n = n, .items = eos});
}

const json *gguf_config(const checkpoint *c, arena *a, error *err) {
    const json *meta = checkpoint_config(c);
    const struct architecture *arch = architecture_of(c);
    str name = json_str(json_get(meta, "general.architecture"), STR(""));
    if (!arch) {
        buf known = {0};
        for (size_t i = 0; i < COUNT(architectures); i++)
            buf_printf(&known, "%s%s", i ? ", " : "", architectures[i].name);
        error_set(err, ERR_UNSUPPORTED, "%s: GGUF architecture \"%.*s\" is not supported; known are %s",
                  checkpoint_path(c), (int)MIN(name.n, 64), name.p, known.p);
        buf_free(&known);
        return NULL;
    }
    json_builder b = {.a = a};
    json_put(&b, "model_type", json_of_str(str_of(arch->model_type)));
    put_derived(&b, c, arch->name); /* of equal keys the first counts */
    put_metadata(&b, c, arch->name, arch->metadata, arch->n_metadata);
    put_metadata(&b, c, arch->name, metadata, COUNT(metadata));
    put_windows(&b, c, arch->name);
    bool latent = json_get(json_built(&b), "kv_lora_rank") != NULL;
    if (latent) put_latent(&b, c, arch->name);
    if (!put_scaling(&b, c, arch->name, err)) return NULL;
    const stored_tensor *embedding = checkpoint_tensor(c, STR("token_embd.weight"));
    if (embedding && embedding->ndim == 2) json_put(&b, "vocab_size", json_of_int(embedding->dim[0]));
    int64_t heads = json_int(json_get(json_built(&b), "num_attention_heads"), 0);
    int64_t width = json_int(json_get(json_built(&b), "hidden_size"), 0);
    char key[128];
    snprintf(key, sizeof key, "%s.attention.key_length", arch->name);
    int64_t head = json_int(json_get(meta, key), heads > 0 ? width / heads : 0);
    /* What GGUF means where it is silent; the families' own defaults are Hugging Face's. */
    if (head > 0) json_put(&b, "head_dim", json_of_int(head));
    if (!json_get(json_built(&b), "num_key_value_heads")) json_put(&b, "num_key_value_heads", json_of_int(heads));
    snprintf(key, sizeof key, "%s.rope.dimension_count", arch->name);
    int64_t rotary = json_int(json_get(meta, key), head);
    if (head > 0 && rotary != head && !latent)
        json_put(&b, "partial_rotary_factor", json_of_real((double)rotary / (double)head));
    for (size_t i = 0; i < COUNT(bias_tensors); i++)
        json_put(&b, bias_tensors[i].hf, json_of_bool(checkpoint_tensor(c, str_of(bias_tensors[i].gguf)) != NULL));
    int64_t n_layers = json_int(json_get(json_built(&b), "num_hidden_layers"), 0);
    json_put(&b, "attention_k_eq_v", json_of_bool(lacks_values(c, MIN(n_layers, 4096))));
    put_eos(&b, meta);
    return json_built(&b);
}
