// SPDX-License-Identifier: MPL-2.0

// Services and nodes of the catalog.
import { useQuery } from './api.js'
import { at, Heading, Trail } from './browse.jsx'
import { count } from './format.js'
import { Facts, Loaded, State, Table } from './parts.jsx'

const link = (page, name, dc) => at(`#/${page}/${encodeURIComponent(name)}`, dc)

// countBy returns the number of elements by key.
function countBy(list, key) {
  const counts = new Map()
  for (const x of list ?? []) counts.set(x[key], (counts.get(x[key]) ?? 0) + 1)
  return counts
}

const checksCell = (n) => (n ? <State state="critical">{count(n, 'critical check')}</State> : <State state="passing">no critical check</State>)

export function Services({ dc, status }) {
  const services = useQuery(at('/v1/catalog/services', dc))
  const critical = useQuery(at('/v1/health/state/critical', dc))
  const bad = countBy(critical.body, 'ServiceName')
  return (
    <>
      <Heading title="Services" page="services" dc={dc} status={status} />
      <Loaded of={services}>
        {(body) => (
          <Table
            caption={count(Object.keys(body).length, 'service')}
            rows={Object.entries(body).map(([name, tags]) => ({ key: name, name, tags, bad: bad.get(name) })).sort((a, b) => (b.bad ?? 0) - (a.bad ?? 0))}
            filter={(s) => `${s.name} ${s.tags.join(' ')}`}
            empty="No service is registered."
            columns={[
              { label: 'Service', of: (s) => <a href={link('services', s.name, dc)}>{s.name}</a> },
              { label: 'Health', of: (s) => (critical.body ? checksCell(s.bad) : '–') },
              { label: 'Tags', of: (s) => s.tags.join(', ') || '–' },
            ]}
          />
        )}
      </Loaded>
    </>
  )
}

const worst = (checks) => ['critical', 'warning'].find((s) => checks.some((c) => c.Status === s)) ?? 'passing'

export function Service({ name, dc }) {
  const entries = useQuery(at(`/v1/health/service/${encodeURIComponent(name)}`, dc))
  return (
    <>
      <Trail of={[['Services', at('#/services', dc)]]} />
      <h1 tabIndex={-1}>{name}</h1>
      <Loaded of={entries}>
        {(body) => (
          <Table
            caption={count(body.length, 'instance')}
            rows={body.map((e) => ({ ...e, key: `${e.Node.Node} ${e.Service.ID}`, state: worst(e.Checks) }))}
            filter={(e) => `${e.Service.ID} ${e.Node.Node} ${e.Service.Address}`}
            empty="No instance is registered."
            columns={[
              { label: 'Instance', of: (e) => e.Service.ID },
              { label: 'Health', of: (e) => <State state={e.state} /> },
              { label: 'Node', of: (e) => <a href={link('nodes', e.Node.Node, dc)}>{e.Node.Node}</a> },
              { label: 'Address', of: (e) => `${e.Service.Address || e.Node.Address}:${e.Service.Port}` },
              { label: 'Checks that do not pass', of: (e) => e.Checks.filter((c) => c.Status !== 'passing').map((c) => `${c.Name}: ${c.Output || c.Status}`).join('; ') || '–' },
            ]}
          />
        )}
      </Loaded>
    </>
  )
}

export function Nodes({ dc, status }) {
  const nodes = useQuery(at('/v1/catalog/nodes', dc))
  const critical = useQuery(at('/v1/health/state/critical', dc))
  const bad = countBy(critical.body, 'Node')
  return (
    <>
      <Heading title="Nodes" page="nodes" dc={dc} status={status} />
      <Loaded of={nodes}>
        {(body) => (
          <Table
            caption={count(body.length, 'node')}
            rows={body.map((n) => ({ ...n, key: n.Node, bad: bad.get(n.Node) })).sort((a, b) => (b.bad ?? 0) - (a.bad ?? 0))}
            filter={(n) => `${n.Node} ${n.Address}`}
            empty="No node is registered."
            columns={[
              { label: 'Node', of: (n) => <a href={link('nodes', n.Node, dc)}>{n.Node}</a> },
              { label: 'Health', of: (n) => (critical.body ? checksCell(n.bad) : '–') },
              { label: 'Address', of: (n) => n.Address },
            ]}
          />
        )}
      </Loaded>
    </>
  )
}

export function Node({ name, dc }) {
  const path = encodeURIComponent(name)
  const node = useQuery(at(`/v1/catalog/node/${path}`, dc))
  const checks = useQuery(at(`/v1/health/node/${path}`, dc))
  return (
    <>
      <Trail of={[['Nodes', at('#/nodes', dc)]]} />
      <h1 tabIndex={-1}>{name}</h1>
      <Loaded of={node}>
        {(body) => body ? (
          <>
            <section class="card"><Facts facts={{ Address: body.Node.Address, Datacenter: body.Node.Datacenter }} /></section>
            <Table
              caption="Services"
              rows={Object.values(body.Services).map((s) => ({ ...s, key: s.ID }))}
              filter={(s) => `${s.ID} ${s.Service}`}
              empty="The node has no service."
              columns={[
                { label: 'Instance', of: (s) => s.ID },
                { label: 'Service', of: (s) => <a href={link('services', s.Service, dc)}>{s.Service}</a> },
                { label: 'Port', num: true, of: (s) => s.Port },
                { label: 'Tags', of: (s) => (s.Tags ?? []).join(', ') || '–' },
              ]}
            />
          </>
        ) : <p class="empty">The node is not registered.</p>}
      </Loaded>
      <Loaded of={checks}>
        {(body) => (
          <Table
            caption="Checks"
            rows={body.map((c) => ({ ...c, key: c.CheckID })).sort((a, b) => (a.Status === 'passing') - (b.Status === 'passing'))}
            filter={(c) => `${c.Name} ${c.ServiceName} ${c.Status}`}
            empty="The node has no check."
            columns={[
              { label: 'Check', of: (c) => c.Name || c.CheckID },
              { label: 'Status', of: (c) => <State state={c.Status} /> },
              { label: 'Service', of: (c) => c.ServiceName || '–' },
              { label: 'Output', of: (c) => c.Output || '–' },
            ]}
          />
        )}
      </Loaded>
    </>
  )
}
