// SPDX-License-Identifier: MIT
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/evaluate.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"
#include "support/test_ops.hpp"

using namespace unitscale;

namespace {

const nn::DecoderConfig small{.vocabulary = 7, .width = 8, .depth = 1, .heads = 2, .length = 4};

std::vector<std::int32_t> text(std::size_t size) { return test::elements(test::random_tokens({size}, 7)); }

/// Mean of -log2 softmax(logits)[label] over the windows that start at `starts`, from the logits alone.
template <class T>
double bits_by_hand(test::LanguageModel<T>& model, const std::vector<std::int32_t>& tokens,
                    const std::vector<std::size_t>& starts, std::size_t masked = 0) {
    double sum = 0.0;
    for (const std::size_t start : starts) {
        model.tape.begin_step({.training = false, .gradients = false});
        const Tensor<std::int32_t> ids({1, 4}, std::span<const std::int32_t>(tokens).subspan(start, 4));
        const auto logits = model.decoder(model.tape, ids);
        for (std::size_t t = masked; t < 4; ++t) {
            double total = 0.0;
            const auto logit = [&](std::size_t v) {
                return static_cast<double>(static_cast<Accum<T>>(logits.value()(0, t, v)));
            };
            for (std::size_t v = 0; v < 7; ++v) total += std::exp(logit(v));
            sum += std::log2(total) - logit(static_cast<std::size_t>(tokens[start + t + 1])) / std::log(2.0);
        }
    }
    return sum / static_cast<double>((4 - masked) * starts.size());
}

}  // namespace

TEST_CASE("evaluate: the mean loss in bits over disjoint windows, however they are batched") {
    for (const char* recipe : {"fp32", "unit-fp32"}) {
        test::LanguageModel<float> model(find_recipe(recipe), small);
        test::randomise(model.decoder.parameters(), 0.7);
        const auto tokens = text(23);  // five windows: the last two tokens are left over
        const double want = bits_by_hand(model, tokens, {0, 4, 8, 12, 16});
        for (const std::size_t rows : {1u, 2u, 5u, 100u})
            CHECK(train::evaluate(model.decoder, model.tape, tokens, 4, rows) == Approx(want).epsilon(1e-6));
        CHECK(train::evaluate(model.decoder, model.tape, tokens, 4, 2, 100, 3) ==
              Approx(bits_by_hand(model, tokens, {0, 4, 8, 12, 16}, 3)).epsilon(1e-6));
        CHECK_THROWS_WITH(train::evaluate(model.decoder, model.tape, tokens, 4, 2, 100, 4),
                          "evaluate: 4 masked predictions; expected fewer than the sequence's 4");
        // At most two windows, spread over the five.
        CHECK(train::evaluate(model.decoder, model.tape, tokens, 4, 2, 2) ==
              Approx(bits_by_hand(model, tokens, {0, 8})).epsilon(1e-6));
        CHECK(train::evaluate(model.decoder, model.tape, tokens, 4, 2, 0) ==
              Approx(bits_by_hand(model, tokens, {0})).epsilon(1e-6));
    }
}

// The logits have 16 bits; the sums over them do not.
TEMPLATE_TEST_CASE("evaluate: the loss of a 16-bit tape has a float's digits, for sums of any size", "", Half,
                   BFloat16) {
    test::LanguageModel<TestType> model(find_recipe("fp32"), small);
    test::randomise(model.decoder.parameters(), 0.7);
    const auto tokens = text(23);
    const double want = bits_by_hand(model, tokens, {0, 4, 8, 12, 16});
    for (const std::size_t rows : {1u, 2u, 5u})
        CHECK(train::evaluate(model.decoder, model.tape, tokens, 4, rows) == Approx(want).epsilon(1e-6));
    const auto long_text = text(1 + 4 * 10'000);  // the sum of 40,000 losses is beyond Half's range
    const double whole = train::evaluate(model.decoder, model.tape, long_text, 4, 10'000);
    CHECK(whole > 2.0);
    CHECK(whole == Approx(train::evaluate(model.decoder, model.tape, long_text, 4, 100)).epsilon(1e-6));
}

TEST_CASE("evaluate: dropout is off and the run is left as it was") {
    auto config = small;
    config.dropout = 0.5;
    test::LanguageModel<float> model(find_recipe("unit-fp32"), config);
    const auto tokens = text(23);
    const std::uint64_t step = model.state.step();
    const double first = train::evaluate(model.decoder, model.tape, tokens, 4, 2);
    CHECK(train::evaluate(model.decoder, model.tape, tokens, 4, 2) == first);
    CHECK(model.state.step() == step);
    for (const Parameter<float>* parameter : model.decoder.parameters()) CHECK(!parameter->has_gradient());
}

TEST_CASE("evaluate: too few tokens and sizes of 0 are errors") {
    test::LanguageModel<float> model(find_recipe("fp32"), small);
    REQUIRE_THROWS_WITH(train::evaluate(model.decoder, model.tape, text(4), 4, 2),
                        "evaluate: 4 tokens; expected more than one sequence of 4");
    REQUIRE_THROWS_WITH(train::evaluate(model.decoder, model.tape, text(9), 4, 0),
                        "evaluate: 0 rows of sequences of 4 tokens; expected at least 1 of each");
    REQUIRE_THROWS_WITH(train::evaluate(model.decoder, model.tape, text(9), 0, 2),
                        "evaluate: 2 rows of sequences of 0 tokens; expected at least 1 of each");
}
