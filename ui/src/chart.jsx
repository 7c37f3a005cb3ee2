// SPDX-License-Identifier: MPL-2.0

import { useEffect, useRef } from 'preact/hooks'
import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'
import { history } from './status.js'

const height = 180
// minSpan is the shortest shown time, in seconds.
const minSpan = 300

function draw(element, data) {
  const style = getComputedStyle(element)
  const [line, grid, text] = ['--link', '--line', '--muted'].map((name) => style.getPropertyValue(name).trim())
  const axis = { stroke: text, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1 } }
  return new uPlot({
    width: element.clientWidth, height, legend: { show: false }, cursor: { show: false },
    scales: { x: { range: (_, min, max) => [Math.min(min, max - minSpan), max] }, y: { range: (_, min, max) => [0, (max ?? 1) * 1.2 || 1] } },
    axes: [{ ...axis, space: 90, values: (_, ticks) => ticks.map((t) => new Date(t * 1000).toLocaleTimeString('en-GB')) }, { ...axis, size: 64, values: (_, ticks) => ticks.map((t) => `${t} ms`) }],
    series: [{}, { stroke: line, width: 2, spanGaps: false, points: { size: 4 } }],
  }, data, element)
}

// Chart shows the round-trip time to a datacenter since the page was opened. A
// gap means that no path worked.
export function Chart({ name, version }) {
  const element = useRef()
  const plot = useRef()
  const data = history.get(name) ?? [[], []]
  useEffect(() => {
    const start = () => {
      plot.current?.destroy()
      plot.current = draw(element.current, history.get(name) ?? [[], []])
    }
    start()
    const scheme = matchMedia('(prefers-color-scheme: dark)')
    scheme.addEventListener('change', start)
    addEventListener('resize', start)
    return () => {
      scheme.removeEventListener('change', start)
      removeEventListener('resize', start)
      plot.current.destroy()
      plot.current = undefined
    }
  }, [name])
  useEffect(() => plot.current?.setData(data), [version])
  const known = data[1].filter((ms) => ms != null)
  const summary = known.length
    ? `now ${data[1].at(-1) == null ? 'no path works' : `${data[1].at(-1).toFixed(1)} ms`}, lowest ${Math.min(...known).toFixed(1)} ms, highest ${Math.max(...known).toFixed(1)} ms`
    : 'no measurement yet'
  return (
    <section class="card">
      <h2>Round-trip time since this page was opened</h2>
      <p class="note">{summary}</p>
      <div class="chart" ref={element} role="img" aria-label={`Round-trip time to ${name}: ${summary}`} />
    </section>
  )
}
