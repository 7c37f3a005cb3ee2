// SPDX-License-Identifier: MPL-2.0

// The map of datacenters. The tables below it have the same content and links, for
// screen readers and the keyboard.
import { forceCollide, forceLink, forceManyBody, forceSimulation, forceX, forceY } from 'd3-force'
import { useMemo } from 'preact/hooks'
import { rtt } from './format.js'
import { Icon, kindOf } from './parts.jsx'
import { rttOf } from './status.js'

const width = 900
const radius = 30
// maxNodes bounds the map. Datacenters with a problem are shown first.
const maxNodes = 60
// maxRing is the number of datacenters above which their mutual connections would
// be illegible.
const maxRing = 13

// edgesOf returns the connections between datacenters: {from, to, there, back,
// rtt}. There is the state from "from" to "to".
export function edgesOf(status, views, names) {
  const edges = status.datacenters.filter((d) => !d.own && names.includes(d.name)).map((d) => ({
    from: status.datacenter, to: d.name, there: d.outbound, back: d.inbound, rtt: rttOf(d),
  }))
  const seen = (from, to) => views.find((v) => v.datacenter === from)?.datacenters.find((d) => d.name === to)
  const others = names.filter((n) => n !== status.datacenter)
  others.forEach((a, i) => others.slice(i + 1).forEach((b) => {
    const ab = seen(a, b)
    const ba = seen(b, a)
    if (ab || ba) edges.push({ from: a, to: b, there: ab?.outbound ?? ba?.inbound, back: ba?.outbound ?? ab?.inbound, other: true })
  }))
  return edges
}

// ring places few datacenters on an ellipse, so that no connection crosses a third
// datacenter. The datacenter of the server is at the left.
function ring(own, names) {
  const nodes = [own, ...names.filter((n) => n !== own)]
  const angle = (i) => Math.PI + (2 * Math.PI * i) / nodes.length
  const rx = nodes.length < 3 ? 190 : Math.max(250, nodes.length * 42)
  const ry = nodes.length < 3 ? 0 : Math.max(125, nodes.length * 30)
  return nodes.map((id, i) => ({ id, x: rx * Math.cos(angle(i)), y: ry * Math.sin(angle(i)) }))
}

// star places many datacenters around that of the server.
function star(own, names) {
  const nodes = names.map((id) => (id === own ? { id, x: 0, y: 0 } : { id }))
  const links = nodes.filter((n) => n.id !== own).map((n) => ({ source: own, target: n.id }))
  forceSimulation(nodes)
    .force('link', forceLink(links).id((n) => n.id).distance(190).strength(0.4))
    .force('charge', forceManyBody().strength(-1400))
    .force('collide', forceCollide(95))
    .force('x', forceX().strength(0.03))
    .force('y', forceY().strength(0.22))
    .stop()
    .tick(300)
  return nodes
}

// layout places the datacenters. It depends only on their names, so the map does
// not move when a state changes.
function layout(own, names) {
  const nodes = names.length <= maxRing ? ring(own, names) : star(own, names)
  const xs = nodes.map((n) => n.x)
  const ys = nodes.map((n) => n.y)
  const [left, top] = [Math.min(...xs), Math.min(...ys)]
  const size = [Math.max(...xs) - left, Math.max(...ys) - top]
  const w = Math.max(width, size[0] + 260)
  const h = Math.max(240, size[1] + 150)
  const at = new Map(nodes.map((n) => [n.id, { x: n.x - left + (w - size[0]) / 2, y: n.y - top + (h - size[1]) / 2 - 8 }]))
  return { at, w, h }
}

const lineKind = { ok: 'ok', failing: 'bad' }

// Arrow is one direction of an edge, next to the line between the centres.
function Arrow({ a, b, state, thin }) {
  const kind = lineKind[state] ?? 'unknown'
  const length = Math.hypot(b.x - a.x, b.y - a.y)
  const [ux, uy] = [(b.x - a.x) / length, (b.y - a.y) / length]
  const off = thin ? 3.5 : 6
  const point = (along, side) => [a.x + ux * along - uy * side, a.y + uy * along + ux * side]
  const [x1, y1] = point(radius + 6, off)
  const [x2, y2] = point(length - radius - 14, off)
  const [cx, cy] = point(length * 0.68, off)
  const tip = [point(length - radius - 5, off), point(length - radius - 16, off - 5), point(length - radius - 16, off + 5)]
  return (
    <g class={`arrow ${kind} ${thin ? 'thin' : ''}`}>
      <line x1={x1} y1={y1} x2={x2} y2={y2} />
      <polygon points={tip.map((p) => p.join(',')).join(' ')} />
      {kind === 'bad' && <path class="cross" d={`M${cx - 7} ${cy - 7}l14 14M${cx + 7} ${cy - 7}l-14 14`} />}
    </g>
  )
}

function Label({ a, b, text }) {
  const [x, y] = [a.x + (b.x - a.x) * 0.47, a.y + (b.y - a.y) * 0.47]
  const w = text.length * 7.2 + 14
  return (
    <g class="rtt">
      <rect x={x - w / 2} y={y - 11} width={w} height={22} rx={11} />
      <text x={x} y={y + 4.5}>{text}</text>
    </g>
  )
}

function Place({ d, at }) {
  const kind = kindOf(d.state)
  const role = [d.primary && 'primary', d.own && 'this server'].filter(Boolean).join(', ')
  return (
    <g onClick={() => { location.hash = `#/dc/${d.name}` }} class={`place ${kind}`}>
      <circle cx={at.x} cy={at.y} r={radius} />
      <svg x={at.x - 14} y={at.y - 14} width={28} height={28} viewBox="0 0 28 28"><g transform="scale(1.75)"><Icon kind={kind} /></g></svg>
      <text class="name" x={at.x} y={at.y + radius + 19}>{d.name}</text>
      <text class="note" x={at.x} y={at.y + radius + 35}>{d.state === 'ok' ? role : `${d.state}${role && ` · ${role}`}`}</text>
    </g>
  )
}

export function FederationMap({ status, views }) {
  const own = status.datacenter
  const all = status.datacenters
  const shown = all.length <= maxNodes ? all
    : [...all].sort((a, b) => (b.own - a.own) || ((a.state === 'ok') - (b.state === 'ok'))).slice(0, maxNodes)
  const names = shown.map((d) => d.name).sort()
  const { at, w, h } = useMemo(() => layout(own, names), [own, names.join()])
  if (all.length < 2) return null
  const edges = edgesOf(status, views, names)
  return (
    <section class="card map" aria-label="Map">
      <div class="bar">
        <h2>Map</h2>
        <p class="legend" aria-hidden="true">
          <span class="key ok">works</span><span class="key bad">fails</span><span class="key unknown">not known</span>
          <span>Arrows show the direction of connections; times are round trips from {own}.</span>
        </p>
      </div>
      <svg viewBox={`0 0 ${w} ${h}`} aria-hidden="true" focusable="false">
        {[...edges].sort((a, b) => (b.other ?? 0) - (a.other ?? 0)).map((e) => (
          <g key={`${e.from} ${e.to}`}>
            <Arrow a={at.get(e.from)} b={at.get(e.to)} state={e.there} thin={e.other} />
            <Arrow a={at.get(e.to)} b={at.get(e.from)} state={e.back} thin={e.other} />
          </g>
        ))}
        {edges.filter((e) => e.rtt != null).map((e) => <Label a={at.get(e.from)} b={at.get(e.to)} text={rtt(e.rtt)} key={e.to} />)}
        {shown.map((d) => <Place d={d} at={at.get(d.name)} key={d.name} />)}
      </svg>
      <p class="note">
        The tables below have the same content.
        {shown.length < all.length && ` The map shows ${shown.length} of ${all.length} datacenters.`}
      </p>
    </section>
  )
}
