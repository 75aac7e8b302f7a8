// A Prometheus mixin of the rules in ../prometheus and the dashboards in ../grafana: `mixtool generate all mixin.libsonnet`,
// or (import 'mixin.libsonnet') + { _config+:: { ... } } in your own.
local groups(text) = std.parseYaml(text).groups;

{
  _config+:: {
    // Matchers of the series of the service, in place of the name of its scrape.
    serviceSelector: 'job="straggler-rca"',
    // Address of your runbook for an alert, with %s for its name; empty for none.
    runbookURLPattern: '',
  },

  local config = self._config,
  local configured(rule) = rule {
    expr: std.strReplace(super.expr, 'job="straggler-rca"', config.serviceSelector),
  },
  local alert(rule) = configured(rule) {
    annotations+:
      { [if 'description' in rule.annotations then null else 'description']: rule.annotations.action }
      + { [if config.runbookURLPattern == '' then null else 'runbook_url']: config.runbookURLPattern % rule.alert },
  },
  local each(f, found) = [group { rules: std.map(f, super.rules) } for group in found],

  prometheusAlerts+:: {
    groups+: each(
      alert,
      groups(importstr '../prometheus/alerts.yaml') + groups(importstr '../prometheus/gpu-alerts.yaml'),
    ),
  },
  prometheusRules+:: { groups+: each(configured, groups(importstr '../prometheus/recording.yaml')) },
  grafanaDashboards+:: {
    'straggler-rca.json': import '../grafana/dashboard.json',
    'straggler-rca-incidents.json': import '../grafana/incidents.json',
  },
}
