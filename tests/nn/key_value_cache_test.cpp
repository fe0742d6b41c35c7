// SPDX-License-Identifier: MIT
#include <unitscale/nn/key_value_cache.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"
#include "support/test_ops.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

using namespace unitscale;

namespace {

constexpr std::size_t vocabulary = 11, batch = 2;

struct Case {
    const char* name;
    nn::DecoderConfig config;
};

/// Cases: learned and rotary positions; all heads and grouped heads; tied and untied readouts; each placement of norms;
/// all positions and a window.
/// Heads of size 16 and more, with keys that generation in float reads in place; smaller heads.
/// More keys than one block of attention.
std::vector<Case> cases() {
    const nn::DecoderConfig base{
        .vocabulary = vocabulary, .width = 32, .depth = 2, .heads = 2, .length = 40, .hidden_ratio = 1.5};
    std::vector<Case> list;
    const auto add = [&](const char* name, auto&& change) {
        list.push_back({name, base});
        change(list.back().config);
    };
    add("learned positions, gains, recomputed blocks", [](auto& c) { c.norm.gains = true, c.recompute = true; });
    add("rotary, grouped heads", [](auto& c) { c.positions = nn::Positions::rotary, c.heads = 8, c.groups = 2; });
    add("tied, post norm, layer norm, biases", [](auto& c) {
        c.tied = true, c.placement = nn::NormPlacement::post, c.norm = {.kind = nn::NormKind::layer, .gains = true},
        c.bias = true;
    });
    add("tied, rotary, one group, gated silu, attention multiplier 1, dropout", [](auto& c) {
        c.tied = true, c.positions = nn::Positions::rotary, c.groups = 1,
        c.feed_forward = nn::FeedForwardKind::gated_silu, c.attention_mult = 1.0, c.dropout = 0.1;
    });
    add("rotary, a window of 9, grouped heads",
        [](auto& c) { c.positions = nn::Positions::rotary, c.window = 9, c.heads = 4, c.groups = 2; });
    return list;
}

Tensor<std::int32_t> columns(const Tensor<std::int32_t>& ids, std::size_t begin, std::size_t end) {
    Tensor<std::int32_t> part({ids.dim(0), end - begin});
    for (std::size_t b = 0; b < ids.dim(0); ++b)
        std::copy_n(ids.data() + b * ids.dim(1) + begin, end - begin, part.data() + b * part.dim(1));
    return part;
}

/// The logits [batch, T, vocabulary] of a sequence in parts that begin at `starts`.
template <class T>
std::vector<T> logits_in_parts(test::LanguageModel<T>& model, const Tensor<std::int32_t>& ids,
                               std::vector<std::size_t> starts, const std::optional<FloatFormat>& format = {}) {
    const std::size_t length = ids.dim(1);
    std::vector<T> logits(batch * length * vocabulary);
    nn::KeyValueCache<T> cache = model.decoder.make_cache(batch, 0, format);
    starts.push_back(length);
    for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
        const std::size_t added = starts[i + 1] - starts[i];
        model.tape.begin_step({.training = false, .gradients = false});
        const Variable<T> part = model.decoder(model.tape, columns(ids, starts[i], starts[i + 1]), cache);
        REQUIRE(part.shape() == Shape{batch, added, vocabulary});
        REQUIRE(cache.length() == starts[i + 1]);
        for (std::size_t b = 0; b < batch; ++b)
            std::copy_n(part.value().data() + b * added * vocabulary, added * vocabulary,
                        logits.data() + (b * length + starts[i]) * vocabulary);
    }
    return logits;
}

std::vector<std::size_t> every(std::size_t step, std::size_t length) {
    std::vector<std::size_t> starts;
    for (std::size_t start = 0; start < length; start += step) starts.push_back(start);
    return starts;
}

/// The largest difference / the largest expected magnitude.
template <class T>
double relative_difference(const std::vector<T>& got, const std::vector<T>& expected) {
    double largest = 0.0, worst = 0.0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
        largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
        worst = std::max(worst, std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i])));
    }
    REQUIRE(largest > 0.1);
    return worst / largest;
}

}  // namespace

// Equal to the bit, not just close:
// - every kernel forms a row by equal operations in equal order, for any rows beside it;
// - keys and values in the cache are copies;
// - factors are fixed by the model.
// Rounding to 8 bits needs equal bits: a difference in the last place that crosses a boundary becomes one of 6 %.
TEMPLATE_TEST_CASE("KeyValueCache: tokens in parts have the logits of the whole sequence, with every recipe", "[nn]",
                   float, double) {
    using T = TestType;
    for (const Case& c : cases())
        for (const Recipe& recipe : known_recipes()) {
            // The largest magnitude is measured over the present rows: a tensor in parts has other biases.
            const auto measures = [&](const char* module) {
                const ScaleSource source = recipe.formats(ProductKind::linear, module).activation_scale.source;
                return source == ScaleSource::amax || source == ScaleSource::delayed;
            };
            if (measures("") || measures("decoder/block0/ffn/down")) continue;
            INFO(c.name << ", " << recipe.name);
            test::LanguageModel<T> model(recipe, c.config);
            if (recipe.scaling == Scaling::none) test::randomise(model.decoder.parameters(), 0.3);
            model.plan(test::random_batch(batch, 40, vocabulary));
            const auto ids = test::random_tokens({batch, 40}, vocabulary);
            model.tape.begin_step({.training = false, .gradients = false});
            const std::vector<T> whole = test::elements(model.decoder(model.tape, ids).value());
            const std::vector<std::vector<std::size_t>> cuts = {
                {0}, every(1, 40), every(3, 40), {0, 1, 2, 35, 36}, {0, 32, 33, 39}};
            for (const auto& starts : cuts) {
                const std::vector<T> parts = logits_in_parts(model, ids, starts);
                CHECK(relative_difference(parts, whole) < (std::is_same_v<T, float> ? 1e-5 : 1e-12));
                // A cache holds plain numbers, which are rounded if the scales of data are no powers of two.
                if (!(recipe.scaling == Scaling::propagate && recipe.propagate.rounding == ScaleRounding::none))
                    CHECK(parts == whole);
            }
            // The cache has an effect: without the tokens before them, these tokens have other logits.
            nn::KeyValueCache<T> empty = model.decoder.make_cache(batch);
            model.tape.begin_step({.training = false, .gradients = false});
            const std::vector<T> alone = test::elements(model.decoder(model.tape, columns(ids, 39, 40), empty).value());
            double change = 0.0;
            for (std::size_t v = 0; v < vocabulary; ++v)
                change = std::max(
                    change, std::abs(static_cast<double>(alone[v]) - static_cast<double>(whole[39 * vocabulary + v])));
            CHECK(change > 0.01);
        }
}

TEST_CASE("KeyValueCache: a planned factor is the plan's factor for any length") {
    Recipe recipe = find_recipe("unit-fp32");
    recipe.automatic_rule = Constraint::gmean;
    test::LanguageModel<float> model(recipe, cases()[0].config);
    const auto ids = test::random_tokens({batch, 40}, vocabulary);
    model.tape.plan([&] { return ops::softmax_cross_entropy(model.decoder(model.tape, ids), ids); });
    model.tape.begin_step({.training = false, .gradients = false});
    const auto whole = test::elements(model.decoder(model.tape, ids).value());
    CHECK(logits_in_parts(model, ids, every(1, 40)) == whole);
}

TEST_CASE("KeyValueCache: memory is as many bytes as the format's elements and scales, and a window bounds it") {
    const auto bytes = [](const std::optional<FloatFormat>& format, std::size_t window = 0) {
        return nn::KeyValueCache<float>({.layers = 3,
                                         .batch = 2,
                                         .capacity = 200,
                                         .columns = 64,
                                         .groups = 4,
                                         .format = format,
                                         .window = window})
            .bytes();
    };
    constexpr std::size_t elements = std::size_t{2} * 3 * 2 * 200 * 64, scales = std::size_t{2} * 3 * 2 * 200 * 4;
    CHECK(bytes({}) == 4 * elements);
    CHECK(bytes(fp32) == 4 * elements);
    CHECK(bytes(fp16) == 2 * elements);
    CHECK(bytes(bf16) == 2 * elements);
    CHECK(bytes(e4m3) == elements + scales);
    CHECK(bytes(e2m1) == elements + scales);
    CHECK(bytes(e4m3, 500) == elements + scales);
    CHECK(bytes(e4m3, 37) == (elements + scales) / 2);  // 36 + 64 positions
    CHECK(nn::KeyValueCache<Half>({.capacity = 10, .columns = 8}).bytes() == 2 * 10 * 8 * 2);
    REQUIRE_THROWS_WITH(nn::KeyValueCache<float>({.columns = 8, .groups = 3}),
                        "KeyValueCache: columns 8 in 3 groups; expected groups to divide columns");
    REQUIRE_THROWS_WITH(nn::KeyValueCache<float>({.format = tf32}),
                        Catch::StartsWith("cached lines: format ") &&
                            Catch::EndsWith("; expected fp32, fp16, bf16 or a signed format of at most 8 bits"));
#if defined(__linux__)
    REQUIRE_THROWS_WITH(nn::KeyValueCache<float>({.capacity = std::size_t{1} << 50}),
                        Catch::StartsWith("KeyValueCache: capacity 1125899906842624: takes "));
#endif
}

// What a format changes is tested at the op: attention over keys and values that the test rounds by the format's rule.
TEST_CASE("KeyValueCache: with a narrow format the logits do not depend on how a text is divided") {
    for (const Case& c : cases())
        for (const char* recipe : {"fp32", "unit-fp8"}) {
            test::LanguageModel<float> model(find_recipe(recipe), c.config);
            test::randomise(model.decoder.parameters(), 0.3);
            model.plan(test::random_batch(batch, 40, vocabulary));
            const auto ids = test::random_tokens({batch, 40}, vocabulary);
            const auto exact = logits_in_parts(model, ids, {0});
            for (const auto& [format, least, most] :
                 {std::tuple{e4m3, 1e-3, 0.3}, {e5m2, 1e-3, 0.6}, {fp16, 1e-6, 0.02}, {bf16, 1e-5, 0.1}}) {
                INFO(c.name << ", " << recipe << ", " << name(format));
                const auto whole = logits_in_parts(model, ids, {0}, format);
                CHECK(relative_difference(whole, exact) > least);
                CHECK(relative_difference(whole, exact) < most);
                CHECK(logits_in_parts(model, ids, every(1, 40), format) == whole);
                CHECK(logits_in_parts(model, ids, {0, 1, 2, 35, 36}, format) == whole);
            }
            CHECK(logits_in_parts(model, ids, every(7, 40), fp32) == exact);
        }
}

TEST_CASE("KeyValueCache: a window's ring of positions gives the logits of the whole sequence") {
    Recipe attention_too = find_recipe("unit-fp32");
    attention_too.products.push_back(
        {.kind = ProductKind::attention, .formats = {.activation = Quantiser{.format = e4m3}}});
    const std::size_t length = 150;
    for (const Recipe& recipe : {find_recipe("fp32"), find_recipe("unit-fp8"), attention_too})
        for (const nn::Positions positions : {nn::Positions::rotary, nn::Positions::learned}) {
            INFO(recipe.name);
            nn::DecoderConfig config = cases()[0].config;
            config.length = length, config.window = 5, config.positions = positions;
            test::LanguageModel<float> model(recipe, config);
            test::randomise(model.decoder.parameters(), 0.3);
            model.plan(test::random_batch(batch, 40, vocabulary));
            const auto ids = test::random_tokens({batch, length}, vocabulary);
            model.tape.begin_step({.training = false, .gradients = false});
            const auto whole = test::elements(model.decoder(model.tape, ids).value());
            nn::KeyValueCache<float> cache = model.decoder.make_cache(batch);
            CHECK(cache.config().held() == 68);
            for (const auto& starts : {std::vector<std::size_t>{0}, every(1, length), {0, 60, 61, 140}})
                CHECK(logits_in_parts(model, ids, starts) == whole);
            CHECK(logits_in_parts(model, ids, {0}, e4m3) == logits_in_parts(model, ids, {0, 60, 61, 140}, e4m3));
        }
    nn::KeyValueCache<float> cache({.capacity = 200, .columns = 4, .window = 5});
    cache.advance(150);
    cache.truncate(120);
    cache.truncate(86);
    REQUIRE_THROWS_WITH(cache.truncate(85),
                        "KeyValueCache: truncate to 85 positions; with a window of 5 the cache holds those from 82 on");
    cache.clear();
    cache.advance(60);
    cache.truncate(0);
}

TEST_CASE("KeyValueCache: rows of several lengths have the logits of the rows alone") {
    Recipe attention_too = find_recipe("unit-fp32");
    attention_too.products.push_back(
        {.kind = ProductKind::attention, .formats = {.activation = Quantiser{.format = e4m3}}});
    for (const Case& c : cases())
        for (const Recipe& recipe : {find_recipe("fp32"), find_recipe("unit-fp8"), attention_too})
            for (const std::optional<FloatFormat>& format : {std::optional<FloatFormat>{}, {e4m3}}) {
                INFO(c.name << ", " << recipe.name << (format ? ", e4m3" : ""));
                test::LanguageModel<float> model(recipe, c.config);
                test::randomise(model.decoder.parameters(), 0.3);
                model.plan(test::random_batch(batch, 40, vocabulary));
                const auto ids = test::random_tokens({2, 40}, vocabulary);
                nn::KeyValueCache<float> cache = model.decoder.make_cache(3, 0, format);
                // Items 2 and 0 continue rows 0 and 1 of ids.
                std::size_t lengths[2] = {0, 0};
                const std::size_t counts[4][2] = {{40 - 12, 5}, {1, 20}, {3, 3}, {8, 12}};
                std::vector<float> got[2];
                for (const auto& count : counts) {
                    const std::size_t longest = std::max(count[0], count[1]);
                    Tensor<std::int32_t> part({2, longest});
                    std::fill_n(part.data(), part.size(), 0);
                    for (std::size_t r = 0; r < 2; ++r)
                        std::copy_n(ids.data() + r * 40 + lengths[r], count[r], part.data() + r * longest);
                    model.tape.begin_step({.training = false, .gradients = false});
                    const std::vector<nn::CacheRow> rows = {{2, count[0]}, {0, count[1]}};
                    const auto logits = model.decoder(model.tape, part, cache, rows);
                    for (std::size_t r = 0; r < 2; ++r) {
                        const float* const from = logits.value().data() + r * longest * vocabulary;
                        got[r].insert(got[r].end(), from, from + count[r] * vocabulary);
                        lengths[r] += count[r];
                    }
                    CHECK(cache.length(2) == lengths[0]);
                    CHECK(cache.length(0) == lengths[1]);
                    CHECK(cache.length(1) == 0);
                }
                const auto alone = logits_in_parts(model, ids, every(7, 40), format);
                CHECK(std::equal(got[0].begin(), got[0].end(), alone.begin(), alone.begin() + 40 * vocabulary));
                CHECK(std::equal(got[1].begin(), got[1].end(), alone.begin() + 40 * vocabulary, alone.end()));
                cache.clear(2);
                CHECK(cache.length(2) == 0);
                CHECK(cache.length(0) == 40);
            }
}

TEST_CASE("KeyValueCache: after truncate and clear others may follow; a throw changes nothing") {
    test::LanguageModel<float> model(find_recipe("unit-fp8"), cases()[1].config);
    const auto ids = test::random_tokens({batch, 20}, vocabulary);
    nn::KeyValueCache<float> cache = model.decoder.make_cache(batch, 20);
    const auto run = [&](const Tensor<std::int32_t>& part) {
        model.tape.begin_step({.training = false, .gradients = false});
        return test::elements(model.decoder(model.tape, part, cache).value());
    };
    static_cast<void>(run(columns(ids, 0, 12)));
    const auto first = run(columns(ids, 12, 20));
    cache.truncate(12);
    CHECK(cache.length() == 12);
    REQUIRE_THROWS(run(full<std::int32_t>({batch, 8}, static_cast<std::int32_t>(vocabulary))));
    CHECK(cache.length() == 12);
    static_cast<void>(run(columns(ids, 0, 3)));  // another continuation, overwritten by the next
    cache.truncate(12);
    CHECK(run(columns(ids, 12, 20)) == first);
    cache.clear();
    CHECK(cache.length() == 0);
    static_cast<void>(run(columns(ids, 0, 12)));
    CHECK(run(columns(ids, 12, 20)) == first);
}

TEST_CASE("KeyValueCache: errors name the sizes") {
    REQUIRE_THROWS_WITH(nn::KeyValueCache<float>({.layers = 2, .batch = 1, .capacity = 0, .columns = 8}),
                        "KeyValueCache: layers 2, batch 1, capacity 0, columns 8; expected at least 1 of each");
    nn::KeyValueCache<float> cache({.layers = 2, .batch = 1, .capacity = 5, .columns = 8});
    CHECK(cache.capacity() == 5);
    cache.advance(4);
    REQUIRE_THROWS_WITH(cache.advance(2), "KeyValueCache: 4 positions and 2 more; the capacity is 5");
    REQUIRE_THROWS_WITH(cache.truncate(5), "KeyValueCache: truncate to 5 positions; there are 4");
    REQUIRE_THROWS_WITH(cache.layer(2), "KeyValueCache: layer 2 of 2");
    CHECK(cache.layer(1).length == 4);
    CHECK(cache.layer(1).keys != cache.layer(0).keys);
    CHECK(cache.layer(1).keys != cache.layer(1).values);

    test::LanguageModel<float> model(find_recipe("fp32"), cases()[0].config);
    const auto message = [&](const Tensor<std::int32_t>& ids, nn::KeyValueCache<float> used, bool gradients = false) {
        model.tape.begin_step({.training = gradients, .gradients = gradients});
        try {
            static_cast<void>(model.decoder(model.tape, ids, used));
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string("none");
    };
    const auto one = full<std::int32_t>({1, 1}, 0);
    CHECK(message(one, model.decoder.make_cache()) == "none");
    CHECK(message(one, model.decoder.make_cache(), true) ==
          "Decoder: a cache in a step that records gradients; begin it with gradients = false");
    CHECK(message(full<std::int32_t>({1}, 0), model.decoder.make_cache()) == "Decoder: ids [1]; expected [B,T]");
    CHECK(message(one, cache) == "Decoder: a cache of 2 layers of 8 columns; expected 2 of 32");
    CHECK(message(one, model.decoder.make_cache(3)) == "Decoder: ids [1,1] and a cache for a batch of 3");
    CHECK(message(full<std::int32_t>({1, 4}, 0), model.decoder.make_cache(1, 3)) ==
          "Decoder: 0 positions and 4 more; the cache ends at 3");
    CHECK(message(full<std::int32_t>({1, 41}, 0), model.decoder.make_cache(1, 50)) ==
          "Decoder: a sequence of 41 tokens; learned positions end at 40");
    CHECK(message(one, nn::KeyValueCache<float>({.layers = 2, .columns = 32, .groups = 2, .window = 3})) ==
          "Decoder: a cache of 2 groups with a window of 3; expected 2 with 0");

    nn::KeyValueCache<float> two = model.decoder.make_cache(2, 5);
    const auto row_message = [&](const std::vector<nn::CacheRow>& rows) {
        model.tape.begin_step({.training = false, .gradients = false});
        try {
            static_cast<void>(model.decoder(model.tape, full<std::int32_t>({2, 3}, 0), two, rows));
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string("none");
    };
    CHECK(row_message({{0, 3}}) == "Decoder: ids [2,3] and 1 rows of a cache; expected one for each row of ids");
    CHECK(row_message({{0, 3}, {2, 3}}) ==
          "Decoder: item 2 of a cache for a batch of 2; expected each item at most once");
    CHECK(row_message({{1, 3}, {1, 3}}) ==
          "Decoder: item 1 of a cache for a batch of 2; expected each item at most once");
    CHECK(row_message({{0, 3}, {1, 4}}) == "Decoder: 4 tokens of a row; ids [2,3] have 3");
    CHECK(row_message({{0, 3}, {1, 2}}) == "none");
    CHECK(row_message({{0, 3}, {1, 2}}) == "Decoder: 3 positions and 3 more; the cache ends at 5");
    CHECK(two.length(0) == 3);
    CHECK(two.length(1) == 2);
}
