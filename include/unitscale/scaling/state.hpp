// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/random.hpp>
#include <unitscale/scaling/recipe.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unitscale {

/// A place in the model: an op in a module, by a small number that stays the same from step to step. Everything that
/// outlives a step (formats, random counters, statistics) is keyed by it.
struct Site {
    std::uint32_t id = 0;
    friend constexpr bool operator==(Site, Site) = default;
};

/// What the library remembers between steps, beside the parameters: the sites met so far, the formats of the products
/// there, the forward factors that were planned, the number of training steps and the seed of all random choices. The user keeps it beside the model, a tape
/// borrows it, a checkpoint saves it. One state serves one tape at a time.
/// Test: tests/scaling/state_test.cpp
class ScalingState {
public:
    /// Number of a module path; 0 is the root.
    using Scope = std::uint32_t;

    explicit ScalingState(std::uint64_t seed = 0) : seed_(seed) {}

    /// The scope `name` inside `parent`, made at first use. No allocation afterwards.
    [[nodiscard]] Scope scope(Scope parent, std::string_view name) {
        for (const Scope child : scopes_[parent].children)
            if (scopes_[child].name == name) return child;
        const auto id = static_cast<Scope>(scopes_.size());
        const std::string& above = scopes_[parent].path;
        scopes_.push_back({.name = std::string(name), .path = above.empty() ? std::string(name) : concatenate(above, "/", name)});
        scopes_[parent].children.push_back(id);
        return id;
    }

    /// The site of the `ordinal`-th op called `op` in a scope, made at first use. No allocation afterwards.
    [[nodiscard]] Site site(Scope scope, std::string_view op, std::uint32_t ordinal) {
        for (const std::uint32_t id : scopes_[scope].sites)
            if (sites_[id].ordinal == ordinal && sites_[id].op == op) return {id};
        const auto id = static_cast<std::uint32_t>(sites_.size());
        std::string path = scopes_[scope].path;
        if (!path.empty()) path += "/";
        path += op;
        if (ordinal > 0) {
            path += '.';
            path += std::to_string(ordinal);
        }
        const std::uint64_t hash = hash_name(path);
        const auto planned = plan_.find(path);
        sites_.push_back({.scope = scope,
                          .op = std::string(op),
                          .ordinal = ordinal,
                          .path = std::move(path),
                          .hash = hash,
                          .alpha = planned == plan_.end() ? std::optional<double>() : planned->second});
        scopes_[scope].sites.push_back(id);
        return {id};
    }

    [[nodiscard]] std::size_t site_count() const noexcept { return sites_.size(); }

    /// Module path, op and ordinal: `decoder/block0/ffn/up/linear`, `decoder/add.1`.
    [[nodiscard]] const std::string& path(Site site) const { return sites_[site.id].path; }
    [[nodiscard]] const std::string& path(Scope scope) const { return scopes_[scope].path; }

    /// The formats of the product at a site: looked up in the recipe at first use, then the same for good, so that the
    /// table of `products()` says what the products really do.
    [[nodiscard]] const ProductFormats& formats(Site site, ProductKind kind, const Recipe& recipe) {
        SiteRecord& record = sites_[site.id];
        if (!record.product) record.product = Product{site, kind, recipe.formats(kind, scopes_[record.scope].path)};
        return record.product->formats;
    }

    /// A product that the tape has met.
    struct Product {
        Site site{};
        ProductKind kind = ProductKind::linear;
        ProductFormats formats{};
    };

    /// Every product met so far, in the order of the sites.
    [[nodiscard]] std::vector<Product> products() const {
        std::vector<Product> result;
        for (const SiteRecord& record : sites_)
            if (record.product) result.push_back(*record.product);
        return result;
    }

    /// Whether forward factors have been planned: a model's ops then have the same ones for good.
    [[nodiscard]] bool has_plan() const noexcept { return !plan_.empty(); }
    [[nodiscard]] std::optional<double> planned_alpha(Site site) const { return sites_[site.id].alpha; }
    void set_planned_alpha(Site site, double alpha) {
        sites_[site.id].alpha = alpha;
        plan_[sites_[site.id].path] = alpha;
    }
    /// Forward factors by the path of their op's site.
    [[nodiscard]] const std::map<std::string, double>& plan() const noexcept { return plan_; }
    void set_plan(std::map<std::string, double> plan) {
        plan_ = std::move(plan);
        for (SiteRecord& record : sites_) {
            const auto planned = plan_.find(record.path);
            record.alpha = planned == plan_.end() ? std::optional<double>() : planned->second;
        }
    }

    /// Training steps begun so far.
    [[nodiscard]] std::uint64_t step() const noexcept { return step_; }
    void set_step(std::uint64_t step) noexcept { step_ = step; }

    [[nodiscard]] std::uint64_t seed() const noexcept { return seed_; }

    /// The stream of random words for a site in this step. `part` tells apart several uses at one site (micro-batches,
    /// operands). It depends on the site's path, not on its number, so it survives a change elsewhere in the model.
    [[nodiscard]] RandomKey random_key(Site site, std::uint64_t part) const noexcept {
        return {seed_, mix(mix(sites_[site.id].hash, step_), part)};
    }

    /// Names what a checkpoint keeps to a visitor: visitor.scalar(name, value&) for whole numbers,
    /// visitor.table(name, std::map<std::string, double>&) for the plan.
    template <class Visitor>
    void visit_state(Visitor&& visitor) {
        visitor.scalar("step", step_);
        visitor.scalar("seed", seed_);
        std::map<std::string, double> plan = plan_;
        visitor.table("plan", plan);
        if (plan != plan_) set_plan(std::move(plan));
    }

private:
    struct ScopeRecord {
        std::string name{};
        std::string path{};
        std::vector<Scope> children{};
        std::vector<std::uint32_t> sites{};
    };
    struct SiteRecord {
        Scope scope = 0;
        std::string op{};
        std::uint32_t ordinal = 0;
        std::string path{};
        std::uint64_t hash = 0;
        std::optional<Product> product{};
        std::optional<double> alpha{};
    };

    std::vector<ScopeRecord> scopes_ = std::vector<ScopeRecord>(1);
    std::vector<SiteRecord> sites_{};
    std::map<std::string, double> plan_{};
    std::uint64_t step_ = 0;
    std::uint64_t seed_ = 0;
};

}  // namespace unitscale
