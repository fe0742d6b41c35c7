// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/random.hpp>
#include <unitscale/scaling/magnitudes.hpp>
#include <unitscale/scaling/recipe.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace unitscale {

/// A place in the model: an op in a module, as a small number that stays equal from step to step. Everything that
/// outlives a step (formats, random counters, statistics) is keyed by it.
struct Site {
    std::uint32_t id = 0;
    friend constexpr bool operator==(Site, Site) = default;
};

/// The library's memory between steps, beside the parameters. It holds the sites met so far and the formats of the
/// products there. It also holds the planned forward factors, the number of training steps and the seed of all random
/// choices. The user keeps it beside the model, a tape borrows it, a checkpoint saves it. One state serves one tape at
/// a time.
/// Test: tests/scaling/state_test.cpp
class ScalingState {
public:
    /// Number of a module path; 0 is the root.
    using Scope = std::uint32_t;
    /// Number of an op's name in a scope. The ops of that name there are a series, counted by their ordinals.
    using Series = std::uint32_t;

    explicit ScalingState(std::uint64_t seed = 0) : seed_(seed) {}

    /// The scope `name` inside `parent`, made at first use. No allocation afterwards. `alias`: a second name by which
    /// the patterns of recipes may match; empty: none. Block i of n has the alias `block-` and n - i, so that `block-1`
    /// is the last one of any model.
    [[nodiscard]] Scope scope(Scope parent, std::string_view name, std::string_view alias = {}) {
        for (const Scope child : scopes_[parent].children)
            if (scopes_[child].name == name) return child;
        return add_scope(parent, name, alias);
    }

    /// The ops called `op` in a scope, made at first use. The time depends on the number of names in the scope only.
    [[nodiscard]] Series series(Scope scope, std::string_view op) {
        for (const Series known : scopes_[scope].series)
            if (series_[known].op == op) return known;
        return add_series(scope, op);
    }
    /// The site of the `ordinal`-th op of a series, made at first use. Constant time, and no allocation afterwards.
    [[nodiscard]] Site site(Series series, std::uint32_t ordinal) {
        const std::vector<std::uint32_t>& made = series_[series].sites;
        return ordinal < made.size() && made[ordinal] != no_site ? Site{made[ordinal]} : add_site(series, ordinal);
    }
    [[nodiscard]] Site site(Scope scope, std::string_view op, std::uint32_t ordinal) {
        return site(series(scope, op), ordinal);
    }

    [[nodiscard]] std::size_t site_count() const noexcept { return sites_.size(); }

    /// Module path, op and ordinal: `decoder/block0/ffn/up/linear`, `decoder/add.1`.
    [[nodiscard]] const std::string& path(Site site) const { return sites_[site.id].path; }
    [[nodiscard]] const std::string& path(Scope scope) const { return scopes_[scope].path; }
    [[nodiscard]] const std::string& op(Site site) const { return sites_[site.id].op; }

    /// A product that the tape has met.
    struct Product {
        Site site{};
        ProductKind kind = ProductKind::linear;
        ProductFormats formats{};

        /// The rule of an operand. In a product of two activations the right one has the rule of activations, too.
        [[nodiscard]] OperandRule rule(OperandSlot slot) const {
            const bool activation =
                kind == ProductKind::matmul && role_of(slot) == OperandRole::weight && !formats.own(slot);
            return activation ? formats.rule(OperandRole::activation) : formats.rule(slot);
        }
    };

    /// The product at a site with its formats. They are looked up in the recipe at first use and never change
    /// afterwards, so the table of `products()` is true.
    [[nodiscard]] const std::shared_ptr<const Product>& product(Site site, ProductKind kind, const Recipe& recipe) {
        SiteRecord& record = sites_[site.id];
        const ScopeRecord& module = scopes_[record.scope];
        if (!record.product)
            record.product =
                std::make_shared<const Product>(Product{site, kind, recipe.formats(kind, module.path, module.alias)});
        return record.product;
    }
    [[nodiscard]] const ProductFormats& formats(Site site, ProductKind kind, const Recipe& recipe) {
        return product(site, kind, recipe)->formats;
    }

    /// Error, naming the recipe's field: a rule with formats, for some modules, that has matched no product so far. A
    /// misspelt module would silently train in FP32.
    [[gnu::cold, gnu::noinline]] void check_patterns(const Recipe& recipe) const {
        for (std::size_t i = 0; i < recipe.products.size(); ++i) {
            const ProductRule& rule = recipe.products[i];
            if (rule.pattern == "*" || !rule.formats.any()) continue;
            const bool matched = std::any_of(sites_.begin(), sites_.end(), [&](const SiteRecord& site) {
                return site.product &&
                       rule.applies(site.product->kind, scopes_[site.scope].path, scopes_[site.scope].alias);
            });
            check(matched, "recipe: products.", i, ".pattern is '", rule.pattern,
                  "', which matches no product of kind ", name(rule.kind), " in this model");
        }
    }

    /// Notes that the op at a site has no rule for scaling `propagate`: it was computed with the scales multiplied out.
    void note_wide(Site site) {
        const std::string& op = sites_[site.id].op;
        if (std::find(ops_without_rule_.begin(), ops_without_rule_.end(), op) == ops_without_rule_.end())
            ops_without_rule_.push_back(op);
    }
    /// The ops noted by `note_wide`, each once, for reports to the user.
    [[nodiscard]] const std::vector<std::string>& wide_ops() const noexcept { return ops_without_rule_; }

    /// The bias of an operand of the product at a site in this step: see `Magnitudes::bias`.
    template <class Measure>
    [[nodiscard]] int operand_bias(Site site, std::size_t operand, const FloatFormat& format, const ScaleRule& rule,
                                   bool training, Measure&& amax) {
        return magnitudes_.bias(sites_[site.id].path, operand, format, rule, {step_, training}, amax);
    }
    template <class Measure>
    [[nodiscard]] int operand_bias(Site site, OperandRole role, const FloatFormat& format, const ScaleRule& rule,
                                   bool training, Measure&& amax) {
        return operand_bias(site, operand_place(role), format, rule, training, amax);
    }
    /// The bias that was used last, for reports; 0 if none was.
    [[nodiscard]] int last_bias(Site site, std::size_t operand) const {
        return magnitudes_.last_bias(sites_[site.id].path, operand);
    }
    [[nodiscard]] int last_bias(Site site, OperandRole role) const { return last_bias(site, operand_place(role)); }
    /// Whether a bias was used. Steps without gradients use none of operands in gradients' products.
    [[nodiscard]] bool has_bias(Site site, std::size_t operand) const {
        return magnitudes_.has_bias(sites_[site.id].path, operand);
    }
    /// Number of operands with a largest magnitude that was infinite or NaN at least once. They were rounded without a
    /// bias.
    [[nodiscard]] std::size_t non_finite_operands() const noexcept { return magnitudes_.non_finite_operands(); }
    /// A size of a value that the op at a site measures, one training step late: see `Magnitudes::delayed_size`.
    [[nodiscard]] double delayed_size(Site site, std::size_t which, double now, bool training) {
        return magnitudes_.delayed_size(sites_[site.id].path, which, now, {step_, training});
    }

    /// The magnitudes that this training step has remembered so far: see `Magnitudes::for_each_of_step`.
    template <class Use>
    void for_each_magnitude(const Use& use) const {
        magnitudes_.for_each_of_step(step_, use);
    }
    /// Raises a magnitude of this training step: see `Magnitudes::raise`.
    void raise_magnitude(const std::string& path, std::size_t place, float now, std::size_t history) {
        magnitudes_.raise(path, place, now, history, {step_, true});
    }

    /// Every product met so far, in the order of the sites. Attention is one of them where it rounds operands.
    [[nodiscard]] std::vector<Product> products() const {
        std::vector<Product> result;
        for (const SiteRecord& record : sites_)
            if (record.product && (record.product->kind != ProductKind::attention || record.product->formats.any()))
                result.push_back(*record.product);
        return result;
    }

    /// Whether forward factors have been planned. A model's ops then keep these factors.
    [[nodiscard]] bool has_plan() const noexcept { return !plan_.empty(); }
    [[nodiscard]] std::optional<double> planned_alpha(Site site) const { return sites_[site.id].alpha; }
    void set_planned_alpha(Site site, double alpha) {
        sites_[site.id].alpha = alpha;
        plan_[sites_[site.id].path] = alpha;
    }
    /// Measured scales under `propagate` (`PropagateRule::measured`): the root mean square of the value at a site, and
    /// of the gradient that the op there gives its input `i` where the loss has the gradient 1. Empty: not measured.
    [[nodiscard]] std::optional<double> planned_scale(Site site) const { return sites_[site.id].alpha; }
    [[nodiscard]] std::optional<double> planned_gradient_scale(Site site, std::size_t i) const {
        const std::vector<double>& planned = sites_[site.id].gradient_scales;
        return i < planned.size() && planned[i] > 0.0 ? planned[i] : std::optional<double>();
    }
    void set_planned_scale(Site site, double scale) { set_planned_alpha(site, scale); }
    void set_planned_gradient_scale(Site site, std::size_t i, double scale) {
        SiteRecord& record = sites_[site.id];
        if (record.gradient_scales.size() <= i) record.gradient_scales.resize(i + 1, 0.0);
        record.gradient_scales[i] = scale;
        plan_[concatenate(record.path, gradient_mark, i)] = scale;
    }

    /// The plan by the path of the op's site: forward factors or scales. Gradients' scales are under path`|d`i.
    /// Error: a number that is not positive and finite.
    [[nodiscard]] const std::map<std::string, double>& plan() const noexcept { return plan_; }
    void set_plan(std::map<std::string, double> plan) {
        for (const auto& [path, number] : plan) {
            check(number > 0.0 && number <= std::numeric_limits<double>::max(), "ScalingState: plan: ", path, " is ",
                  number, "; expected a positive finite number");
            const std::size_t mark = path.find(gradient_mark);
            if (mark != std::string::npos) static_cast<void>(input_number(path, mark + gradient_mark.size()));
        }
        plan_ = std::move(plan);
        for (SiteRecord& record : sites_) read_plan(record);
    }

    /// Training steps begun so far.
    [[nodiscard]] std::uint64_t step() const noexcept { return step_; }
    void set_step(std::uint64_t step) noexcept { step_ = step; }

    [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }

    /// The stream of random words for a site in this step. `part` distinguishes several uses at one site
    /// (micro-batches, operands). The stream depends on the site's path, not on its number, so it survives a change
    /// elsewhere in the model.
    [[nodiscard]] RandomKey random_key(Site site, std::uint64_t part) const noexcept {
        return {seed_, mix(mix(sites_[site.id].hash, step_), part)};
    }
    /// The stream for what is drawn once for a site, and is equal in every step.
    [[nodiscard]] RandomKey lasting_key(Site site, std::uint64_t part) const noexcept {
        return {seed_, mix(mix(sites_[site.id].hash, std::numeric_limits<std::uint64_t>::max()), part)};
    }

    /// Shows a checkpoint's state to a visitor: visitor.scalar(name, value&) for whole numbers, visitor.table(name,
    /// std::map<std::string, double>&) for the plan and for the magnitudes of past steps.
    template <class Visitor>
    void visit_state(Visitor&& visitor) {
        visitor.scalar("step", step_);
        visitor.scalar("seed", seed_);
        std::map<std::string, double> plan = plan_;
        visitor.table("plan", plan);
        if (plan != plan_) set_plan(std::move(plan));
        const auto known = magnitudes_.table<std::map<std::string, double>>();
        auto amax = known;
        visitor.table("amax", amax);
        if (amax != known) magnitudes_.set_table(amax);
    }

private:
    struct SiteRecord;

    // Out of line and small, because each runs once for a place in the model.
    [[gnu::cold, gnu::noinline]] Scope add_scope(Scope parent, std::string_view name, std::string_view alias) {
        const auto id = static_cast<Scope>(scopes_.size());
        const auto inside = [](const std::string& above, std::string_view own) {
            return above.empty() ? std::string(own) : concatenate(above, "/", own);
        };
        ScopeRecord made{.name = std::string(name), .path = inside(scopes_[parent].path, name)};
        const std::string& above = scopes_[parent].alias;
        if (!alias.empty() || !above.empty())
            made.alias = inside(above.empty() ? scopes_[parent].path : above, alias.empty() ? name : alias);
        scopes_.push_back(std::move(made));
        scopes_[parent].children.push_back(id);
        return id;
    }
    [[gnu::cold, gnu::noinline]] Series add_series(Scope scope, std::string_view op) {
        const auto id = static_cast<Series>(series_.size());
        series_.push_back({.scope = scope, .op = std::string(op)});
        scopes_[scope].series.push_back(id);
        return id;
    }
    [[gnu::cold, gnu::noinline]] Site add_site(Series series, std::uint32_t ordinal) {
        const auto id = static_cast<std::uint32_t>(sites_.size());
        SeriesRecord& ops = series_[series];
        std::string path = scopes_[ops.scope].path;
        if (!path.empty()) path += "/";
        path += ops.op;
        if (ordinal > 0) {
            path += '.';
            path += std::to_string(ordinal);
        }
        const std::uint64_t hash = hash_name(path);
        sites_.push_back({.scope = ops.scope, .op = ops.op, .path = std::move(path), .hash = hash});
        read_plan(sites_.back());
        if (ops.sites.size() <= ordinal) ops.sites.resize(ordinal + 1, no_site);
        ops.sites[ordinal] = id;
        return {id};
    }

    /// The number of an input at the end of a plan's key. Error: the key ends otherwise.
    [[nodiscard, gnu::cold]] static std::size_t input_number(const std::string& key, std::size_t at) {
        std::size_t i = 0;
        const char* const end = key.data() + key.size();
        const auto read = std::from_chars(key.data() + at, end, i);
        check(read.ec == std::errc() && read.ptr == end && i < 1'000'000, "ScalingState: plan entry '", key,
              "'; expected the number of an input behind ", gradient_mark);
        return i;
    }

    /// Takes the numbers of a site from the plan.
    [[gnu::cold]] void read_plan(SiteRecord& record) const {
        const auto planned = plan_.find(record.path);
        record.alpha = planned == plan_.end() ? std::optional<double>() : planned->second;
        record.gradient_scales.clear();
        const std::string mark = concatenate(record.path, gradient_mark);
        for (auto entry = plan_.lower_bound(mark); entry != plan_.end() && entry->first.starts_with(mark); ++entry) {
            const std::size_t i = input_number(entry->first, mark.size());
            if (record.gradient_scales.size() <= i) record.gradient_scales.resize(i + 1, 0.0);
            record.gradient_scales[i] = entry->second;
        }
    }

    struct ScopeRecord {
        std::string name{};
        std::string path{};
        std::string alias{};  ///< the path with aliases; empty: there is none in it
        std::vector<Scope> children{};
        std::vector<Series> series{};
    };
    static constexpr std::uint32_t no_site = std::numeric_limits<std::uint32_t>::max();
    struct SeriesRecord {
        Scope scope = 0;
        std::string op{};
        std::vector<std::uint32_t> sites{};  ///< by ordinal; `no_site`: not used yet
    };
    struct SiteRecord {
        Scope scope = 0;
        std::string op{};
        std::string path{};
        std::uint64_t hash = 0;
        std::shared_ptr<const Product> product{};
        std::optional<double> alpha{};          ///< planned: the forward factor, or under `propagate` the scale
        std::vector<double> gradient_scales{};  ///< planned, by input; 0: none
    };
    static constexpr std::string_view gradient_mark = "|d";  ///< between a path and an input's number in the plan

    std::vector<ScopeRecord> scopes_ = std::vector<ScopeRecord>(1);
    std::vector<SeriesRecord> series_{};
    std::vector<SiteRecord> sites_{};
    std::map<std::string, double> plan_{};
    Magnitudes magnitudes_{};
    std::vector<std::string> ops_without_rule_{};
    std::uint64_t step_ = 0;
    std::uint64_t seed_ = 0;
};

}  // namespace unitscale
