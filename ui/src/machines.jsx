// SPDX-License-Identifier: MPL-2.0

// Servers and gateways.
import { useFetch, useQuery } from './api.js'
import { Loaded, State, Table } from './parts.jsx'

const memberStates = ['none', 'alive', 'leaving', 'left', 'failed']

// serversOf returns the servers of the WAN pool. The name of a member is
// NODE.DATACENTER.
function serversOf(members) {
  return members.map((m) => {
    const dot = m.Name.lastIndexOf('.')
    return { ...m, key: m.Name, node: m.Name.slice(0, dot), dc: m.Name.slice(dot + 1), state: memberStates[m.Status] ?? 'unknown' }
  })
}

// gatewaysOf returns the gateways of all datacenters.
function gatewaysOf(states) {
  return states.flatMap((s) => (s.MeshGateways ?? []).map((g) => {
    const checks = g.Checks ?? []
    const worst = ['critical', 'warning', 'passing'].find((state) => checks.some((c) => c.Status === state))
    const tagged = g.Service.TaggedAddresses ?? {}
    const addr = (t) => (t ? `${t.Address}:${t.Port}` : '–')
    return {
      key: `${s.Datacenter} ${g.Node.Node}`, dc: s.Datacenter, node: g.Node.Node, state: worst ?? 'passing',
      wan: addr(tagged.wan), lan: addr(tagged.lan),
      output: checks.filter((c) => c.Status !== 'passing').map((c) => c.Output).filter(Boolean).join('; '),
    }
  }))
}

// bad has the rows that need attention first.
const badFirst = (a, b) => (a.state === 'alive' || a.state === 'passing') - (b.state === 'alive' || b.state === 'passing')

const dcColumn = { label: 'Datacenter', of: (m) => <a href={`#/dc/${m.dc}`}>{m.dc}</a> }

// Gateways is the table of the gateways of one datacenter, or of all.
export function Gateways({ status, dc }) {
  const states = useQuery('/v1/internal/federation-states')
  const unreachable = (g) => status?.datacenters.find((d) => d.name === g.dc)?.unreachable_gateways?.find((u) => u.gateway === g.node)
  return (
    <Loaded of={states}>
      {(body) => (
        <Table
          caption="Gateways"
          rows={gatewaysOf(body ?? []).filter((g) => !dc || g.dc === dc).sort(badFirst)}
          filter={(g) => `${g.node} ${g.dc} ${g.wan} ${g.lan} ${g.state}`}
          empty={`${dc ?? 'The federation'} has no gateway. Start one: wanfed gateway --help`}
          columns={[
            { label: 'Gateway', of: (g) => g.node },
            ...(dc ? [] : [dcColumn]),
            { label: 'Health', of: (g) => <State state={g.state} /> },
            { label: 'WAN address', of: (g) => g.wan },
            { label: 'LAN address', of: (g) => g.lan },
            { label: 'Problem', of: (g) => {
              const u = unreachable(g)
              return u ? `${u.from.join(', ')} cannot connect: ${u.failure}` : g.output || '–'
            } },
          ]}
        />
      )}
    </Loaded>
  )
}

// Servers is the table of the servers of one datacenter, or of all.
export function Servers({ status, version, dc }) {
  const members = useFetch('/v1/agent/members?wan', version)
  const primary = status?.primary_datacenter
  return (
    <Loaded of={members}>
      {(body) => (
        <Table
          caption="Servers"
          rows={serversOf(body).filter((m) => !dc || m.dc === dc).sort(badFirst)}
          filter={(m) => `${m.Name} ${m.Addr} ${m.state}`}
          columns={[
            { label: 'Server', of: (m) => m.node },
            ...(dc ? [] : [dcColumn, { label: 'Role', of: (m) => (m.dc === primary ? 'primary' : 'secondary') }]),
            { label: 'State', of: (m) => <State state={m.state} /> },
            { label: 'Address', of: (m) => `${m.Addr}:${m.Port}` },
            { label: 'Version', of: (m) => m.Tags?.build?.split(':')[0] ?? '–' },
          ]}
        />
      )}
    </Loaded>
  )
}

export function Machines(props) {
  return (
    <>
      <h1 tabIndex={-1}>Servers and gateways</h1>
      <Servers {...props} />
      <Gateways {...props} />
    </>
  )
}
