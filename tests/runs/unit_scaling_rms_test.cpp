// SPDX-License-Identifier: MIT
// The root mean square of every value and every gradient of the Unit Scaling paper's models at initialisation: outputs
// of ops and parameters, for every context layer, placement of norms, residual scheme and constraint rule.
// All lie in [0.5, 2], but for the table `exceptions`, whose bounds follow from theory.
// Tests of the single layers derive the same numbers one by one.
#include <unitscale/analysis/tracker.hpp>
#include <unitscale/nn/unit_scaling_model.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include "support/catch.hpp"
#include "support/highway_sizes.hpp"
#include "support/language_model.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <numbers>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

constexpr std::size_t width = 128, depth = 2, head_size = 64, vocabulary = 512;

struct Setting {
    nn::ContextKind context = nn::ContextKind::relative_attention;
    nn::NormPlacement placement = nn::NormPlacement::pre;
    ResidualRule residual{.scheme = ResidualScheme::fixed, .share = 0.5};
    Constraint rule = Constraint::gmean;
    std::size_t rows = 8, length = 32;
    double readout_exponent = 0.5;  ///< 1: logits of the size width^-1/2

    [[nodiscard]] bool attends() const { return context == nn::ContextKind::relative_attention; }
    [[nodiscard]] bool recurs() const { return context == nn::ContextKind::recurrence; }
    [[nodiscard]] bool joined_by_mean() const { return rule == Constraint::gmean; }
    [[nodiscard]] bool replaces() const { return residual.scheme == ResidualScheme::running_mean; }
    [[nodiscard]] bool without_norms() const { return placement == nn::NormPlacement::none; }
    [[nodiscard]] double all_rows() const { return static_cast<double>(rows * length); }

    [[nodiscard]] Recipe recipe() const {
        Recipe recipe = find_recipe("us-fp32");
        recipe.automatic_rule = rule;
        recipe.residual = residual;
        recipe.readout_exponent = readout_exponent;
        return recipe;
    }
    [[nodiscard]] std::string text() const {
        constexpr const char* placements[] = {"pre", "post", "none"};
        return concatenate(name(context), ", norm ", placements[static_cast<std::size_t>(placement)], ", residual ",
                           name(residual.scheme), ", ", name(rule));
    }
};

std::vector<Setting> settings() {
    std::vector<Setting> list;
    for (const auto context :
         {nn::ContextKind::relative_attention, nn::ContextKind::convolution, nn::ContextKind::recurrence})
        for (const auto placement : {nn::NormPlacement::pre, nn::NormPlacement::post, nn::NormPlacement::none})
            for (const ResidualRule& residual :
                 {ResidualRule{.scheme = ResidualScheme::fixed, .share = 0.5},
                  ResidualRule{.scheme = ResidualScheme::running_mean}, ResidualRule{.scheme = ResidualScheme::depth}})
                for (const Constraint rule : {Constraint::gmean, Constraint::to_output_scale})
                    list.push_back({context, placement, residual, rule});
    return list;
}

/// Tensors with other bounds than [0.5, 2], and the theory of these bounds. Paths are the tracker's labels, where `*`
/// stands for any text. The first entry that names a tensor holds.
struct Exception {
    Pass pass = Pass::value;
    std::vector<std::string> paths{};
    double low = 0.5, high = 2.0;
    std::string theory{};
};

/// The factor by which attention's output grows if all rows of a sequence are alike. See ops::attention_unit_factor.
double alike_rows(const Setting& setting) {
    const double m = attention_multiplier(setting.recipe().parametrisation_rule(), head_size);
    return ops::attention_unit_factor(m * std::numbers::sqrt2, head_size, static_cast<double>(setting.length), true);
}

void add_attention(std::vector<Exception>& list, const Setting& setting) {
    using enum Pass;
    // The factors of the product for q, k and v: the geometric mean makes (width 3 width)^-1/4 of width^-1/2.
    const double a = setting.joined_by_mean() ? std::pow(3.0, -0.25) : 1.0, root = std::sqrt(0.5);
    const double alike = alike_rows(setting), unnormalised = setting.without_norms() ? 0.75 : 1.0;
    list.push_back({value,
                    {"*/attention/matmul"},
                    0.5 * unnormalised * a * a * root,
                    2.0 * a * a * root,
                    "q k has half of the logits' variance; q and k have the size 3^-1/4 under the geometric mean; "
                    "without norms the logits have the stream's square"});
    list.push_back({value,
                    {"*/attention/matmul.1", "*/attention/reshape.5", "*/attention/slice", "*/attention/add.1",
                     "*/attention/select"},
                    0.5 * a * root,
                    2.0 * a,
                    "q r has half of the logits' variance; q has the size 3^-1/4 under the geometric mean"});
    list.push_back(
        {value,
         {"*/attention/matmul.2", "*/attention/transpose.4", "*/attention/reshape.6", "*/attention/out/linear"},
         0.5,
         1.25 * alike,
         "softmax averages: rows that are alike keep their size, times the op's factor"});
    if (setting.without_norms())
        list.push_back({value,
                        {"*/ffn/relu", "*/ffn/down/linear", "*/residual_*"},
                        0.5,
                        1.25 * alike,
                        "without norms the stream keeps the size of attention's output"});
    // Gradients of logits come from differences between values; they shrink where rows are alike.
    list.push_back({gradient,
                    {"*/attention/split", "*/attention/add", "*/attention/reshape", "*/attention/transpose",
                     "*/attention/query_bias"},
                    0.25 * a,
                    1.5,
                    "gradients of q have the other factor's size; less where rows are alike"});
    list.push_back(
        {gradient,
         {"*/attention/split[1]", "*/attention/reshape.1", "*/attention/transpose.1", "*/attention/reshape.4",
          "*/attention/reshape.3", "*/attention/transpose.3", "*/attention/pad", "*/attention/positions/linear"},
         0.25 * a * root,
         1.0,
         "each of k and r, and q's part from either, sees half of the logits' variance"});
    list.push_back({gradient,
                    {"*/attention/positions/weight"},
                    0.125 * a,
                    1.0,
                    "the gradients of a query's logits sum to 0, and slow features hardly differ between distances"});
    list.push_back({gradient,
                    {"*/attention/qkv/linear"},
                    0.5 * std::sqrt(2.0 / 3.0),
                    1.25,
                    "two of three columns are q and k, whose gradients are small"});
    list.push_back({gradient,
                    {"decoder/embedding_norm/shift", "*/attention_norm/shift", "decoder/block0/attention/out/bias",
                     "decoder/block0/ffn/down/bias"},
                    0.5,
                    2.0 * alike,
                    "a sum over rows of gradients that passed attention: each row of the softmax sums to its factor"});
}

void add_recurrence(std::vector<Exception>& list, const Setting& setting) {
    using enum Pass;
    const std::string y = concatenate("*/recurrence/concatenate.", setting.length);  // behind one for each position
    const test::HighwaySizes sizes = test::highway_sizes(nn::JointHighwayConfig{}.shift);
    // With a share of 1, y replaces the stream. The next norm divides its gradient by the size of y.
    const double grown = setting.replaces() ? 1.0 / sizes.state : 1.0;
    // Without norms, the stream has the size of y or, with a share a, at least (1 - a)^1/2.
    const double stream = !setting.without_norms() ? 1.0 : setting.replaces() ? sizes.state : std::sqrt(0.5);
    // States of similar rows add up over positions, which the theory of independent rows leaves out: up to 2.5 times.
    const double alike = 2.5 * grown;
    list.push_back({value,
                    {"*/recurrence/lerp*"},
                    0.75 * stream * sizes.first,
                    1.1 * sizes.candidate,
                    "a state moves from 0 towards tanh(t) and stays below it"});
    list.push_back({value,
                    {y},
                    0.5 * stream * sizes.state,
                    1.1 * sizes.candidate,
                    "y is a mixture of a smaller state and a number in (-1, 1)"});
    list.push_back({value, {"*/recurrence/tanh*"}, 0.75 * stream * sizes.candidate, 1.0, "tanh of numbers of 2^-1/2"});
    list.push_back({gradient,
                    {"*/recurrence/lerp*"},
                    0.5 * sizes.of_state,
                    alike * sizes.of_state,
                    "a state's gradient gathers those of the positions behind it"});
    list.push_back({gradient,
                    {"*/recurrence/first_state", "*/recurrence/add"},
                    0.5 * sizes.before,
                    1.25 * alike * sizes.of_state,
                    "the state before the first position has a state's gradient"});
    list.push_back({gradient,
                    {"*/recurrence/tanh*"},
                    0.5 * sizes.of_candidate,
                    alike * sizes.of_candidate,
                    "the gate s passes a part of the state's gradient"});
    list.push_back({gradient,
                    {"*/recurrence/split.*[1]", "*/recurrence/sub*"},
                    0.4 * sizes.of_u,
                    alike * sizes.of_u,
                    "the slope s (1 - s) is at most 1/4"});
    list.push_back({gradient,
                    {"*/recurrence/split.*"},
                    0.5 * sizes.of_t,
                    alike * sizes.of_t,
                    "the gate s and tanh's slope pass a part of the state's gradient"});
    list.push_back({gradient, {y}, 0.5, 2.0 * grown, "y has its consumer's gradient"});
    list.push_back({gradient,
                    {"*/recurrence/gates/*", "*/recurrence/split*", "*/recurrence/concatenate*", "*/recurrence_norm/*",
                     "*/residual_split"},
                    0.5 * sizes.gates,
                    1.25 * alike * std::max(sizes.gates, sizes.bias),
                    "x has the gates' gradient, which passes the slopes s and s (1 - s)"});
    if (setting.without_norms() && !setting.replaces())
        list.push_back({value,
                        {"*/ffn/relu"},
                        0.5 * stream,
                        2.0,
                        "without norms a branch as small as y leaves the stream (1 - a)^1/2"});
    if (!setting.replaces()) return;
    list.push_back({gradient,
                    {"decoder/embedding_norm/shift"},
                    1.0,
                    1.25 * alike * sizes.bias,
                    "a sum over rows of gradients that grew by the size of y"});
    if (setting.without_norms()) {
        list.push_back({value, {"decoder/block*"}, 0.4 * sizes.state, 2.0, "without norms the stream stays like y"});
        list.push_back({gradient,
                        {"decoder/block*"},
                        0.4,
                        1.25 * grown * std::sqrt(2.0),
                        "the final norm divides all gradients of the stream by its size"});
    }
    list.push_back({value,
                    {"decoder/block0/residual_add", "decoder/block0/residual_split.1*"},
                    0.75 * sizes.state,
                    2.0,
                    "a share of 1 makes y the stream"});
    list.push_back({gradient,
                    {"decoder/block0/residual_add", "decoder/block0/residual_split.1"},
                    0.5,
                    2.0 * grown,
                    "the norm behind the stream divides its gradient by the size of y"});
}

std::vector<Exception> exceptions(const Setting& setting) {
    using enum Pass;
    std::vector<Exception> list;
    list.push_back({value,
                    {"*/bias", "*/shift", "*/query_bias", "*/first_state", "*/recurrence/add"},
                    0.0,
                    0.0,
                    "these parameters start at 0"});
    const double loss = std::log(static_cast<double>(vocabulary)) + 0.5;
    list.push_back(
        {value, {"softmax_cross_entropy"}, 0.97 * loss, 1.03 * loss, "unit-normal logits: the mean of exp is e^1/2"});
    const double gain = std::sqrt(1.0 + setting.all_rows() / width);
    list.push_back({gradient,
                    {"decoder/norm/gain"},
                    0.75 * gain,
                    1.35 * gain,
                    "unit logits: the gradients of all rows have a common part, see the next test"});
    if (setting.replaces())
        list.push_back({gradient, {"decoder/block0/residual_split[1]"}, 0.0, 0.0, "a share of 1 drops the stream"});
    if (setting.attends()) add_attention(list, setting);
    if (setting.recurs()) add_recurrence(list, setting);
    if (setting.joined_by_mean())
        list.push_back({value,
                        {"*/ffn/up/linear"},
                        0.5 * std::sqrt(0.5),
                        2.0,
                        "the geometric mean makes (4 width^2)^-1/4 of width^-1/2; the layer down makes up for it"});
    else
        list.push_back({gradient,
                        {"*/ffn/relu", "*/ffn/up/*"},
                        0.25,
                        2.0,
                        "alpha of the layer down in place of its beta: (width / hidden)^1/2 = 1/2"});
    list.push_back({gradient,
                    {"*/residual_split[1]", "*/residual_split.1[1]"},
                    0.5 * std::sqrt(0.5),
                    2.0,
                    "the stream has the weight (1 - a)^1/2; the split adds the branch"});
    return list;
}

/// The tracked tensors of the first step.
analysis::Track first_step(const Setting& setting, std::size_t classes) {
    const nn::DecoderConfig config = nn::unit_scaling_config({.vocabulary = classes,
                                                              .width = width,
                                                              .depth = depth,
                                                              .head_size = head_size,
                                                              .length = setting.length,
                                                              .context = setting.context,
                                                              .placement = setting.placement});
    test::LanguageModel<float> model(setting.recipe(), config);
    nn::initialise(model.decoder.parameters(), model.recipe, 1, nn::unit_scaling_initial(config, model.recipe));
    const auto batch = test::random_batch(setting.rows, setting.length, classes);
    model.plan(batch);
    analysis::Tracker<float> tracker;
    model.tape.set_observer(&tracker);
    model.tape.begin_step();
    model.tape.backward(model.loss(batch));
    model.tape.set_observer(nullptr);
    return tracker.finish();
}

double rms(const analysis::TrackedTensor& tensor, Pass pass) {
    const auto& steps = tensor.side(pass).steps;
    REQUIRE(steps.size() == 1);
    return steps.front().summary.rms;
}

}  // namespace

TEST_CASE(
    "runs: at initialisation all values and gradients of Unit Scaling's models lie in [0.5, 2], or in theory's "
    "bounds") {
    std::map<std::string, bool> needed;  // by theory: whether a tensor lies outside [0.5, 2]
    std::size_t tensors = 0, named = 0;
    for (const Setting& setting : settings()) {
        const std::vector<Exception> table = exceptions(setting);
        for (const analysis::TrackedTensor& tensor : first_step(setting, vocabulary).tensors)
            for (const Pass pass : {Pass::value, Pass::gradient}) {
                const std::string label = tensor.label();
                const auto entry = std::find_if(table.begin(), table.end(), [&](const Exception& one) {
                    return one.pass == pass && std::any_of(one.paths.begin(), one.paths.end(),
                                                           [&](const auto& path) { return matches(path, label); });
                });
                const Exception& bounds = entry == table.end() ? Exception{} : *entry;
                const double size = rms(tensor, pass);
                ++tensors;
                if (entry != table.end()) {
                    ++named;
                    needed[bounds.theory] = needed[bounds.theory] || size < 0.5 || size > 2.0;
                }
                INFO(setting.text() << ": " << (pass == Pass::value ? "value" : "gradient") << " of " << label
                                    << ", rms " << size << ", bounds " << bounds.low << " to " << bounds.high << " "
                                    << bounds.theory);
                CHECK(size >= bounds.low);
                CHECK(size <= bounds.high);
            }
    }
    for (const auto& [theory, is_needed] : needed) {
        INFO(theory);
        CHECK(is_needed);
    }
    CHECK(tensors == 26496);  // values and gradients of all settings
    CHECK(named < tensors * 3 / 5);
}

TEST_CASE("runs: unit logits give the rows' gradients a common part, which grows with the rows; flat logits do not") {
    // Let z be a row's logits, of unit variance, and p = softmax(z). The loss' slope along z is E_p[z] - z_label, which
    // has the mean 1 in every row. So the gradient of the gains in front of the readout has, beside a random part of
    // size 1, the part 1 / width^1/2 in every row; the sum over N rows, times N^-1/2, is (N / width)^1/2.
    Setting setting{.context = nn::ContextKind::convolution};
    for (const std::size_t length : {std::size_t{32}, std::size_t{128}, std::size_t{256}}) {
        setting.length = length;
        const double grown = std::sqrt(1.0 + setting.all_rows() / width);
        INFO(setting.all_rows() << " rows");
        for (const double exponent : {0.5, 1.0}) {
            setting.readout_exponent = exponent;
            for (const analysis::TrackedTensor& tensor : first_step(setting, 64).tensors) {
                if (!tensor.is_parameter()) continue;
                const double size = rms(tensor, Pass::gradient);
                INFO(tensor.label() << ": rms " << size << ", readout_exponent " << exponent);
                if (exponent == 0.5 && tensor.label() == "decoder/norm/gain") CHECK(size == Approx(grown).epsilon(0.2));
                CHECK(size >= 0.5);
                CHECK(size <= (exponent == 0.5 ? 1.2 * std::max(grown, 2.0) : 2.0));
            }
        }
    }
}
