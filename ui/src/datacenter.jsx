// SPDX-License-Identifier: MPL-2.0

import { Chart } from './chart.jsx'
import { age, ago, rtt } from './format.js'
import { Gateways, Servers } from './machines.jsx'
import { alive, role } from './overview.jsx'
import { Facts, kindOf, Problem, State, Table } from './parts.jsx'
import { rttOf } from './status.js'

function Paths({ paths }) {
  return (
    <Table
      caption="Paths, in the order in which a connection tries them"
      rows={paths.map((p) => ({ ...p, key: `${p.via} ${p.address}`, kind: kindOf(p.health) }))}
      filter={(p) => `${p.address} ${p.via} ${p.health}`}
      empty="No path is known."
      columns={[
        { label: 'Address', of: (p) => p.address },
        { label: 'Via', of: (p) => p.via },
        { label: 'Used', of: (p) => (p.used ? 'yes' : '–') },
        { label: 'Health', of: (p) => <State state={p.health} /> },
        { label: 'RTT', num: true, of: (p) => rtt(p.rtt) },
        { label: 'Last success', of: (p) => ago(p.last_success) },
        { label: 'Known from', of: (p) => (p.sources ?? []).join(', ') || '–' },
        { label: 'Last failure', of: (p) => (p.last_error ? `${ago(p.last_failure)}: ${p.last_error}` : '–') },
      ]}
    />
  )
}

export function Datacenter({ name, status, version }) {
  const d = status?.datacenters.find((x) => x.name === name)
  if (!status || !d) {
    return <h1 tabIndex={-1}>{status ? `The datacenter ${name} is not known` : name}</h1>
  }
  return (
    <>
      <h1 tabIndex={-1}>{name} <State state={d.state} /></h1>
      {(d.cause || d.advice) && (
        <ul class="problems"><Problem state={d.state} title={`${name} is ${d.state}`} cause={d.cause} advice={d.advice} /></ul>
      )}
      <section class="card">
        <Facts
          facts={{
            Role: role(d),
            [`From ${status.datacenter}`]: !d.own && <State state={d.outbound} />,
            [`To ${status.datacenter}`]: !d.own && <State state={d.inbound} />,
            'Round-trip time': !d.own && rtt(rttOf(d)),
            'Servers alive': alive(d.servers_alive, d.servers_known),
            'Gateways healthy': alive(d.gateways_healthy, d.gateways_known),
            'Federation state written': d.updated_at ? ago(d.updated_at) : 'never',
            'Replication lag': d.replication_lag != null && age(d.replication_lag),
          }}
        />
        {d.last_error && <p class="detail">Last error, {ago(d.last_error_at)}: {d.last_error}</p>}
      </section>
      {!d.own && <Paths paths={d.paths ?? []} />}
      {!d.own && <Chart name={name} version={version} />}
      <Servers status={status} version={version} dc={name} />
      <Gateways status={status} dc={name} />
    </>
  )
}
