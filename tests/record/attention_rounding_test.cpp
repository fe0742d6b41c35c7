// SPDX-License-Identifier: MIT
#include <unitscale/record/attention_rounding.hpp>

#include "support/catch.hpp"

#include <unitscale/analysis/grad_check.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

using namespace unitscale;
using enum OperandSlot;

namespace {

struct Setting {
    Recipe recipe = analysis::plain_recipe(Scaling::none);
    ScalingState state{1};
    std::size_t part = 0, parts = 1;

    explicit Setting(const ProductFormats& formats) {
        recipe.products.push_back({.kind = ProductKind::attention, .formats = formats});
    }
    /// What `use(tape, rounding)` returns in a new step.
    template <class F>
    auto step(F&& use, bool training = true) {
        Tape<float> tape(recipe, state);
        tape.begin_step({.micro_batches = parts, .micro_batch = part, .training = training});
        return use(tape, ops::AttentionRounding(tape, tape.next_site("attention")));
    }
};

const auto unmeasured = []() -> float { throw std::runtime_error("measured"); };
ProductFormats fp8(const ScaleRule& rule = {}) {
    return {.activation = Quantiser{.format = e4m3},
            .gradient = Quantiser{.format = e5m2},
            .activation_scale = rule,
            .gradient_scale = rule};
}

}  // namespace

TEST_CASE("attention rounding: each slot has its rule, with the bias of its source") {
    ProductFormats formats = fp8({.source = ScaleSource::constant, .bias = 2});
    formats.set(output_p, {Quantiser{.format = e2m3}, {}});
    formats.set(key_gradient_ds, {});
    formats.set(query_gradient_k, {Quantiser{.format = e5m2}, {.source = ScaleSource::amax, .margin = 1}});
    formats.set(output_v, OperandRule::in_blocks(mxfp4));
    Setting setting(formats);
    setting.step([&](auto& tape, const ops::AttentionRounding& rounding) {
        CHECK(ops::rounds_attention(tape, tape.state().site(0, "attention", 0)));
        for (const OperandSlot slot : {logits_q, logits_k, key_gradient_q, probability_gradient_v, value_gradient_p})
            CHECK(rounding.operand(slot, unmeasured).quantiser == Quantiser{.format = shifted(e4m3, 2)});
        for (const OperandSlot slot : {query_gradient_ds, probability_gradient_dy, value_gradient_dy})
            CHECK(rounding.operand(slot, unmeasured).quantiser == Quantiser{.format = shifted(e5m2, 2)});
        CHECK(rounding.operand(output_p, unmeasured).quantiser == Quantiser{.format = e2m3});
        CHECK_FALSE(rounding.operand(key_gradient_ds, unmeasured).quantiser.has_value());
        CHECK(rounding.operand(query_gradient_k, [] { return 2.0f; }).quantiser ==
              Quantiser{.format = shifted(e5m2, 13)});
        const auto blocks = rounding.operand(output_v, unmeasured);
        CHECK(blocks.quantiser == Quantiser{.format = e2m1});
        CHECK(blocks.blocks == mxfp4);
        CHECK_FALSE(blocks.amax.has_value());
        return 0;
    });
    Setting off({});
    off.step([](auto& tape, const ops::AttentionRounding&) {
        CHECK_FALSE(ops::rounds_attention(tape, tape.state().site(0, "attention", 0)));
        return 0;
    });
    CHECK(off.state.products().empty());
    CHECK(setting.state.products().size() == 1);
}

TEST_CASE("attention rounding: blocks under a scale of the tensor, or with one scale, measure the tensor") {
    BlockFormat whole = mxfp4;
    whole.along = whole.across = whole_dimension;
    for (const BlockFormat& blocks : {nvfp4, whole}) {
        ProductFormats formats;
        formats.set(logits_q, OperandRule::in_blocks(blocks));
        Setting(formats).step([](auto&, const ops::AttentionRounding& rounding) {
            CHECK(rounding.operand(logits_q, [] { return 3.0f; }).amax == 3.0f);
            return 0;
        });
    }
}

TEST_CASE("attention rounding: a tensor is measured once, unless one of its operands has a rule of its own") {
    ProductFormats formats = fp8({.source = ScaleSource::amax});
    formats.set(value_gradient_p, {Quantiser{.format = e2m3}, {.source = ScaleSource::amax}});
    formats.set(logits_k, {Quantiser{.format = e2m3}, {.source = ScaleSource::amax}});
    Setting(formats).step([](auto&, const ops::AttentionRounding& rounding) {
        const auto one = [] { return 1.0f; };
        const auto q = rounding.operand(logits_q, one), k = rounding.operand(logits_k, one),
                   p = rounding.operand(output_p, one);
        CHECK(rounding.operand(key_gradient_q, q, unmeasured).quantiser == q.quantiser);
        CHECK_THROWS_WITH(rounding.operand(query_gradient_k, k, unmeasured), "measured");
        CHECK_THROWS_WITH(rounding.operand(value_gradient_p, p, unmeasured), "measured");
        CHECK(rounding.operand(value_gradient_p, p, [] { return 7.5f; }).quantiser == Quantiser{.format = e2m3});
        return 0;
    });
}

TEST_CASE("attention rounding: delayed remembers the largest magnitude of each tensor, and a checkpoint keeps it") {
    ProductFormats formats = fp8({.source = ScaleSource::delayed, .history = 1});
    formats.set(key_gradient_q, {Quantiser{.format = e4m3}, {.source = ScaleSource::delayed, .history = 1}});
    Setting setting(formats);
    const auto biases = [&](float q, float p, float ds, bool training = true) {
        return setting.step(
            [&](auto& tape, const ops::AttentionRounding& rounding) {
                const auto bias = [&](OperandSlot slot, float amax) {
                    static_cast<void>(rounding.operand(slot, [amax] { return amax; }));
                    const Site site = tape.state().site(0, "attention", 0);
                    return tape.state().last_bias(site, operand_place(slot));
                };
                return std::vector{bias(logits_q, q), bias(output_p, p), bias(query_gradient_ds, ds),
                                   bias(key_gradient_q, 2.0f * q)};
            },
            training);
    };
    CHECK(biases(448.0f, 224.0f, 57344.0f) == std::vector{0, 1, 0, -1});
    CHECK(biases(112.0f, 448.0f, 28672.0f) == std::vector{0, 1, 0, -1});  // of the step before
    CHECK(biases(1.0f, 1.0f, 1.0f, false) == std::vector{0, 1, 0, -1});   // evaluation changes nothing

    struct Saved {
        std::map<std::string, double> amax{};
        bool load = false;
        void scalar(const char*, std::uint64_t&) {}
        void table(const std::string& name, std::map<std::string, double>& table) {
            if (name == "amax") load ? void(table = amax) : void(amax = table);
        }
    } saved;
    setting.state.visit_state(saved);
    CHECK(saved.amax.contains("attention|logits.q|current"));
    CHECK(saved.amax.contains("attention|key_gradient.q|0"));
    const std::uint64_t step = setting.state.step();
    setting.state = ScalingState(1);
    setting.state.set_step(step);
    saved.load = true;
    setting.state.visit_state(saved);
    CHECK(biases(1.0f, 1.0f, 1.0f) == std::vector{2, 0, 1, 1});
}

TEST_CASE("attention rounding: one random stream for each tensor, step, micro-batch and site") {
    std::set<std::uint64_t> streams;
    Setting setting(fp8());
    const auto keys = [&](const ops::AttentionRounding& rounding) {
        for (std::size_t i = linear_slot_count; i < slot_count; ++i) {
            const auto slot = static_cast<OperandSlot>(i);
            const RandomKey key = rounding.operand(slot, unmeasured).key;
            CHECK(key == rounding.operand(first_use(slot), unmeasured).key);
            streams.insert(key.stream);
        }
    };
    const auto both = [&](auto& tape, const ops::AttentionRounding& rounding) {
        keys(rounding);
        keys(ops::AttentionRounding(tape, tape.next_site("attention")));
        return 0;
    };
    setting.step(both);
    CHECK(streams.size() == 12);
    setting.parts = 2;
    setting.step(both);
    CHECK(streams.size() == 24);
    setting.part = 1;
    setting.step(both);
    CHECK(streams.size() == 36);
}
