// SPDX-License-Identifier: MPL-2.0

import { age, count, rtt } from './format.js'
import { edgesOf, FederationMap } from './map.jsx'
import { Icon, kindOf, Problem, State, Table } from './parts.jsx'
import { pathOf, rttOf } from './status.js'
import { useViews } from './views.js'

const rank = { bad: 0, oneway: 1, warn: 2, unknown: 3, ok: 4 }

// seenElsewhere describes whether other datacenters reach one that has a problem.
function seenElsewhere(name, views) {
  const from = (state) => views.filter((v) => v.datacenter !== name && v.datacenters.some((d) => d.name === name && d.outbound === state))
    .map((v) => v.datacenter)
  const [failing, ok] = [from('failing'), from('ok')]
  return [failing.length && `${failing.join(', ')} cannot reach ${name} either`, ok.length && `${ok.join(', ')} can reach ${name}`]
    .filter(Boolean).join('; ')
}

// problems returns what needs the attention of an operator, the worst first.
export function problems(status, views) {
  const out = status.datacenters.filter((d) => d.state !== 'ok').map((d) => ({
    key: d.name, state: d.state, title: `${d.name} is ${d.state}`, cause: d.cause, advice: d.advice,
    note: d.outbound === 'failing' ? seenElsewhere(d.name, views) : '',
    error: d.last_error && !d.cause?.includes(d.last_error) ? d.last_error : '', href: `#/dc/${d.name}`,
  }))
  out.sort((a, b) => rank[kindOf(a.state)] - rank[kindOf(b.state)])
  for (const c of status.components) {
    if (c.state !== 'ok') {
      out.push({ key: `c-${c.name}`, state: c.state, title: `${c.name} of this server: ${c.state}`, cause: c.detail, href: '#/server' })
    }
  }
  for (const v of views) {
    for (const d of v.datacenters) {
      const known = status.datacenters.find((x) => x.name === d.name)
      if (d.own || d.outbound !== 'failing' || !known || known.own || known.outbound === 'failing') continue
      out.push({
        key: `v-${v.datacenter}-${d.name}`, state: 'unreachable', title: `${v.datacenter} cannot reach ${d.name}`,
        advice: `see the cause at a server of ${v.datacenter}: wanfed status`, href: `#/dc/${v.datacenter}`,
      })
    }
  }
  return out
}

// Headline is the state of the federation in one line.
function Headline({ status, found }) {
  const n = status.datacenters.length
  if (!found.length) {
    return (
      <div class="headline ok" role="status">
        <Icon kind="ok" />
        <h1 tabIndex={-1}>{n === 1 ? `${status.datacenter} is ok. No other datacenter is known.` : `All ${n} datacenters are ok`}</h1>
      </div>
    )
  }
  const kind = kindOf(found[0].state)
  return (
    <div class={`headline ${kind}`} role="status">
      <Icon kind={kind} />
      <h1 tabIndex={-1}>{found.length > 1 ? `${found[0].title}, and ${count(found.length - 1, 'more problem')}` : found[0].title}</h1>
    </div>
  )
}

export function direction(d, way) {
  return d.own ? '–' : <State state={d[way]} />
}

export function role(d) {
  return [d.primary ? 'primary' : 'secondary', d.own && 'local'].filter(Boolean).join(', ')
}

// alive shows how many of the known things work.
export function alive(n, known) {
  return n < known || known === 0 ? <State state="degraded">{n} of {known}</State> : `${n} of ${known}`
}

const shownProblems = 20

export function Overview({ status }) {
  const views = useViews(status)
  if (!status) return <h1 tabIndex={-1}>Overview</h1>
  const found = problems(status, views)
  const others = edgesOf(status, views, status.datacenters.map((d) => d.name)).filter((e) => e.other)
    .map((e) => ({ ...e, key: `${e.from} ${e.to}` }))
  return (
    <>
      <Headline status={status} found={found} />
      {found.length > 0 && (
        <section aria-label="Problems">
          <ul class="problems">{found.slice(0, shownProblems).map((p) => <Problem {...p} />)}</ul>
          {found.length > shownProblems && <p>{count(found.length - shownProblems, 'more problem')}: see the table.</p>}
        </section>
      )}
      <FederationMap status={status} views={views} />
      <Table
        id="datacenters"
        caption="Datacenters"
        rows={status.datacenters.map((d) => ({ ...d, key: d.name, kind: kindOf(d.state) }))}
        filter={(d) => `${d.name} ${d.state} ${d.cause ?? ''}`}
        columns={[
          { label: 'Datacenter', of: (d) => <a href={`#/dc/${d.name}`}>{d.name}</a> },
          { label: 'State', of: (d) => <State state={d.state} /> },
          { label: 'Role', of: role },
          { label: `From ${status.datacenter}`, of: (d) => direction(d, 'outbound') },
          { label: `To ${status.datacenter}`, of: (d) => direction(d, 'inbound') },
          { label: 'RTT', num: true, of: (d) => (d.own ? '–' : rtt(rttOf(d))) },
          { label: 'Path', of: (d) => pathOf(d) ? `${pathOf(d).via} ${pathOf(d).address}` : '–' },
          { label: 'Servers alive', of: (d) => alive(d.servers_alive, d.servers_known) },
          { label: 'Gateways healthy', of: (d) => alive(d.gateways_healthy, d.gateways_known) },
          { label: 'Replication lag', num: true, of: (d) => age(d.replication_lag) },
        ]}
      />
      {others.length > 0 && (
        <Table
          caption="Connections between other datacenters"
          rows={others}
          filter={(e) => e.key}
          columns={[
            { label: 'Datacenters', of: (e) => `${e.from} and ${e.to}` },
            { label: 'From the first', of: (e) => <State state={e.there} /> },
            { label: 'To the first', of: (e) => <State state={e.back} /> },
          ]}
        />
      )}
    </>
  )
}
